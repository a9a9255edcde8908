"""`draftwood train data`, for scripts: from a target's name to a folder of its own dialogues."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwood._version import __version__
from draftwood.errors import OptionError, TokenizerError, UnknownNameError
from draftwood.models.loading.load import Loaded, load
from draftwood.train.data.exclude import read_exclusion
from draftwood.train.data.folder import Folder
from draftwood.train.data.maker import Maker, Say, open_writer, room
from draftwood.train.data.mix import MIX, OWN_SHARE
from draftwood.train.data.prompts import Prompts
from draftwood.train.data.scripts import TURN_TOKENS, Scripts
from draftwood.train.data.texts import read_texts
from draftwood.train.data.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a set is made. Target, seed and excluded files belong to a folder for good; the rest may change between runs."""

    tokens: int | None = 200_000  # answer tokens wanted in all; None: until the minutes are over
    minutes: float | None = None
    least: int = 0  # dialogues to learn from; until they are there, minutes that are over end nothing
    texts: tuple[Path, ...] = ()
    exclude: tuple[Path, ...] = ()
    batch: int = 16
    max_tokens: int = 256
    seed: int = 0
    mix: Mapping[str, float] = field(default_factory=lambda: dict(MIX))
    own: float = OWN_SHARE  # of the prompts over texts: over the target's own

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("batch", 1), ("max_tokens", 8), ("seed", 0), ("least", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise OptionError(f"{name} cannot be {value}\nhint: at least {least}")
        if self.minutes is not None and not self.minutes > 0:
            raise OptionError(f"minutes cannot be {self.minutes}\nhint: more than 0")
        if not 0 <= self.own <= 1:
            raise OptionError(f"own cannot be {self.own}\nhint: a share, from 0 to 1")
        if self.tokens is None and self.minutes is None:
            raise OptionError("neither tokens nor minutes are given, so it would never end")


def parse_mix(text: str) -> dict[str, float]:
    """chat=0.5,summary=0.1: shares of kinds, scaled to one; a kind that is not named is left out."""
    found: dict[str, float] = {}
    for part in text.split(","):
        kind, sign, share = (word.strip() for word in part.partition("="))
        if kind not in MIX:
            raise UnknownNameError("kind of dialogue", kind, MIX)
        try:
            found[kind] = float(share) if sign and kind not in found else -1.0
        except ValueError:
            found[kind] = -1.0
        if not 0 <= found[kind] < float("inf"):
            raise OptionError(f"--mix cannot hold {part.strip()!r}\nhint: for example chat=0.5,summary=0.2,math=0.3")
    if not 0 < sum(found.values()) < float("inf"):
        raise OptionError(f"--mix {text!r} leaves nothing to write")
    return {kind: share / sum(found.values()) for kind, share in found.items()}


def make_data(
    target: str | Loaded,
    out: Path,
    settings: Settings,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    until: threading.Event | None = None,
    say: Say | None = None,
) -> dict[str, Any]:
    """Write dialogues into `out`, or go on with those that are there. The record as it stands at the end."""
    loaded = load(target, dtype=dtype, device=device) if isinstance(target, str) else target
    tokenizer = loaded.tokenizer
    if tokenizer.template is None:
        raise TokenizerError(f"{loaded.name} has no chat template, so it cannot talk to itself\nhint: use a chat model")
    longest = room(loaded, settings.max_tokens)
    if longest < settings.max_tokens + TURN_TOKENS // 2:
        raise OptionError(
            f"answers of {settings.max_tokens} tokens leave no room for questions in a context of {longest}"
        )
    exclusion = read_exclusion(settings.exclude, tokenizer)
    texts = read_texts(settings.texts, tokenizer, settings.seed, (longest - settings.max_tokens) * 7 // 10)
    identity = {
        "target": {"name": loaded.name, "fingerprint": loaded.fingerprint},
        "seed": settings.seed,
        "excluded": exclusion.files,
    }
    facts = {
        "settings": {
            "max_tokens": settings.max_tokens,
            "batch": settings.batch,
            "mix": dict(settings.mix),
            "own": settings.own,
        },
        "texts": {"files": texts.num_files, "passages": len(texts.passages)},
        "backend": loaded.backend,
        "draftwood": __version__,
    }
    with Folder(out, identity, facts).open() as folder:
        scripts = Scripts(
            Turns(tokenizer, loaded.config.eos_token_ids),
            Prompts(texts),
            mix=settings.mix,
            own=settings.own,
            exclusion=exclusion,
            seen=folder.seen,
            seed=settings.seed,
            max_tokens=settings.max_tokens,
            longest=longest,
        )
        with open_writer(loaded, settings.batch, settings.max_tokens, device) as llm:
            maker = Maker(llm, scripts, folder)
            maker.run(settings.tokens, settings.minutes, least=settings.least, until=until, say=say)
        return folder.record()
