"""`draftwood train data` as a Python API: a target writes a folder of dialogues."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from draftwood._version import __version__
from draftwood.core.host import on_host
from draftwood.errors import OptionError, TokenizerError, UnknownNameError
from draftwood.models.loading.load import Loaded, loaded_on
from draftwood.train.data.chat_turns import Turns
from draftwood.train.data.dataset_folder import Folder
from draftwood.train.data.dialogue_scripts import TURN_TOKENS, Scripts
from draftwood.train.data.dialogue_writer import DialogueWriter, Progress, longest_dialogue, open_engine
from draftwood.train.data.exclude import read_exclusion
from draftwood.train.data.mixture import MIX, OWN_SHARE
from draftwood.train.data.passages import read_texts
from draftwood.train.data.prompts import Prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSettings:
    """How a data set is made. A folder's target, seed and excluded files are fixed; the rest may change between runs."""

    tokens: int | None = 200_000  # answer tokens in total; None: until the minutes are over
    minutes: float | None = None
    least: int = 0  # dialogues to train on that are made even if tokens or minutes are reached earlier
    texts: tuple[Path, ...] = ()
    exclude: tuple[Path, ...] = ()
    batch: int | None = None  # dialogues written at once; None depends on the device
    max_tokens: int = 256
    seed: int = 0
    mix: Mapping[str, float] = field(default_factory=lambda: dict(MIX))
    own: float = OWN_SHARE  # share of the prompts over texts that use texts written by the target

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
            raise OptionError("neither tokens nor minutes are given\nhint: give one of them")

    def dialogues_at_once(self, device: torch.device) -> int:
        """On this device: a GPU writes many in about the time of one."""
        return self.batch or (16 if on_host(device) else 512)


def parse_mix(text: str) -> dict[str, float]:
    """chat=0.5,summary=0.1: shares of kinds, scaled to a sum of one. Kinds that are not named are left out."""
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
        raise OptionError(f"--mix {text!r} has no share above 0\nhint: for example chat=0.5,math=0.5")
    return {kind: share / sum(found.values()) for kind, share in found.items()}


def make_dataset(
    target: str | Loaded,
    out: Path,
    settings: DatasetSettings,
    *,
    device: str | torch.device = "auto",
    dtype: str = "auto",
    until: threading.Event | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes dialogues into `out`, after those that are there. Returns the folder's record."""
    loaded = loaded_on(target, dtype=dtype, device=device)
    tokenizer, batch = loaded.tokenizer, settings.dialogues_at_once(loaded.info.device)
    if tokenizer.template is None:
        raise TokenizerError(f"{loaded.name} has no chat template\nhint: use a chat model")
    longest = longest_dialogue(loaded, settings.max_tokens)
    if longest < settings.max_tokens + TURN_TOKENS // 2:
        raise OptionError(
            f"answers of {settings.max_tokens} tokens leave no space for prompts in a context of {longest}\n"
            "hint: lower --max-tokens"
        )
    exclusion = read_exclusion(settings.exclude, tokenizer)
    texts = read_texts(settings.texts, tokenizer, settings.seed, (longest - settings.max_tokens) * 7 // 10)
    identity = {
        "target": {"name": loaded.name, "fingerprint": loaded.fingerprint},
        "seed": settings.seed,
        "excluded": exclusion.files,
    }
    facts = {
        "settings": {"max_tokens": settings.max_tokens, "batch": batch, "mix": dict(settings.mix), "own": settings.own},
        "texts": {"files": texts.num_files, "passages": len(texts.passages)},
        "backend": loaded.info.backend,
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
        with open_engine(loaded, batch, settings.max_tokens) as llm:
            writer = DialogueWriter(llm, scripts, folder)
            writer.run(settings.tokens, settings.minutes, least=settings.least, until=until, progress=progress)
        return folder.record()
