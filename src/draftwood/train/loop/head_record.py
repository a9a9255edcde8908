"""What a run writes about itself: the identity in its checkpoints and the training record in its head files."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood._version import __version__
from draftwood.drafters.nets.files.store import Head, to_bytes
from draftwood.errors import TrainError
from draftwood.train.data.dialogues import Dialogue
from draftwood.train.loop import checkpoint
from draftwood.train.loop.measure import LEAST_USEFUL

if TYPE_CHECKING:
    from draftwood.train.loop.session import Session
    from draftwood.train.loop.trainer import Trainer


LARGE = 32  # rows and columns of the smallest matrix that is stored in fewer than 8 bits


def identity(session: "Session", *, batch_tokens: int, longest: int) -> dict[str, str]:
    """What must be equal for a run to resume, named as the options are. Options that are off are left out, so that runs of
    older versions resume."""
    settings = session.settings
    options = {name: dict(chosen) for name, chosen in settings.options.items()}
    start = ", ".join(f"{name} {found.sha256[:16]}" for name, found in sorted(session.starts.items()))
    return {
        **({"from": start} if start else {}),
        **({"join": "yes"} if settings.join else {}),
        **({"prompt-share": str(settings.prompt_share)} if settings.prompt_share else {}),
        "target": session.loaded.fingerprint,
        "data": digest(session.train),
        "recipes": ",".join(sorted(settings.recipes)),
        "draft-vocab-size": str(settings.draft_vocab_size),
        "longest": str(longest),
        "batch-tokens": str(batch_tokens),
        "option": json.dumps(options, sort_keys=True, default=str),
    }


def digest(dialogues: Iterable[Dialogue]) -> str:
    """A hash of every token and every answer span, in order."""
    found = hashlib.sha256()
    for d in dialogues:
        found.update(len(d.tokens).to_bytes(8, "little"))
        found.update(d.tokens.tobytes())
        found.update(repr(d.answers).encode())
    return found.hexdigest()[:16]


def head_bytes(session: "Session", name: str, trainer: "Trainer | None") -> bytes:
    """The content of a recipe's weights file."""
    plan, settings = session.plans[name], session.settings
    assert plan.net is not None
    record: dict[str, Any] = {
        "recipe": name,
        "target": _plain(session.loaded.name),
        "version": __version__,
        "step": 0 if trainer is None else trainer.step,
        "steps": 0 if trainer is None else trainer.steps,
        "tokens_seen": 0 if trainer is None else trainer.tokens,
        "coverage": round(session.coverage, 4),
        "data": {
            "dialogues": len(session.train),
            "answer_tokens": session.train.num_answer_tokens,
            "record": session.data_record,
        },
        "trained": sorted(session.plans),
        "seed": settings.seed,
        "draft_vocab_size": settings.draft_vocab_size,
        "longest": settings.longest,
        **({} if trainer is None else {"batch_tokens": trainer.batches.tokens}),
        "options": {**plan.notes.get("options", {}), **settings.options.get(name, {})},
    }
    measured = session.tokens_per_pass(name)
    if measured is not None:
        record |= {"tokens_per_pass": round(measured, 4), "useful": measured >= LEAST_USEFUL}
    if settings.join:
        record["joined"] = True
    if settings.prompt_share:
        record["prompt_share"] = settings.prompt_share
    if settings.bits != 8:
        record["bits"] = settings.bits
    if name in session.starts:
        record["started_from"] = asdict(session.starts[name])
    tensors = {key: t.detach().float().cpu() for key, t in plan.net.state_dict().items()}
    # Vectors are stored in float16, where large values become infinite.
    bad = checkpoint.not_finite({key: t.half() if t.ndim < 2 else t for key, t in tensors.items()})
    if bad:
        raise TrainError(f"{name}: {bad[0]} exceeds the range of float16\nhint: lower the rate: --option rate=...")
    head = Head(plan.config, tensors, plan.notes.get("ids", session.keep), session.loaded.fingerprint, record)
    return to_bytes(head, bits={key: settings.bits for key, t in tensors.items() if min(t.shape) >= LARGE})


def _plain(name: str) -> str:
    """A local target is recorded by its folder's name, not by its path."""
    return Path(name).name if Path(name).exists() else name
