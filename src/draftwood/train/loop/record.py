"""How weights came about: what a run is known by, and what its files say about themselves."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood._version import __version__
from draftwood.drafters.nets.store import Head, to_bytes
from draftwood.errors import TrainError
from draftwood.train.data.dialogues import Dialogue
from draftwood.train.loop import checkpoint

if TYPE_CHECKING:
    from draftwood.train.loop.run import Session
    from draftwood.train.loop.trainer import Trainer


def identity(session: "Session", *, batch_tokens: int, longest: int) -> dict[str, str]:
    """What must be the same for a run to go on, by the names people know it by. What is not asked for is not named, so that
    a run of an older version goes on."""
    learning = session.learning
    options = {name: dict(chosen) for name, chosen in learning.options.items()}
    start = ", ".join(f"{name} {found.sha256[:16]}" for name, found in sorted(session.starts.items()))
    return {
        **({"from": start} if start else {}),
        **({"join": "yes"} if learning.join else {}),
        **({"prompt-share": str(learning.prompt_share)} if learning.prompt_share else {}),
        "target": session.loaded.fingerprint,
        "data": digest(session.train),
        "recipes": ",".join(sorted(learning.recipes)),
        "rows": str(learning.rows),
        "longest": str(longest),
        "batch-tokens": str(batch_tokens),
        "option": json.dumps(options, sort_keys=True, default=str),
    }


def digest(dialogues: Iterable[Dialogue]) -> str:
    """Of every token and every answer, in order."""
    found = hashlib.sha256()
    for d in dialogues:
        found.update(len(d.tokens).to_bytes(8, "little"))
        found.update(d.tokens.tobytes())
        found.update(repr(d.answers).encode())
    return found.hexdigest()[:16]


def head_bytes(session: "Session", name: str, trainer: "Trainer | None") -> bytes:
    """A recipe's weights file, as it stands."""
    plan, learning = session.plans[name], session.learning
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
            "record": session.record,
        },
        "trained": sorted(session.plans),
        "seed": learning.seed,
        "rows": learning.rows,
        "longest": learning.longest,
        **({} if trainer is None else {"batch_tokens": trainer.batches.tokens}),
        "options": {**plan.notes.get("options", {}), **learning.options.get(name, {})},
    }
    if learning.join:
        record["joined"] = True
    if learning.prompt_share:
        record["prompt_share"] = learning.prompt_share
    if name in session.starts:
        record["started_from"] = asdict(session.starts[name])
    tensors = {key: t.detach().float().cpu() for key, t in plan.net.state_dict().items()}
    # Small tensors are stored as halves, so what is too large for those is no number in the file.
    bad = checkpoint.no_numbers({key: t.half() if t.ndim < 2 else t for key, t in tensors.items()})
    if bad:
        raise TrainError(
            f"{name}: {bad[0]} has grown beyond what a file holds\nhint: lower the rate: --option rate=..."
        )
    head = Head(plan.config, tensors, plan.notes.get("ids", session.keep), session.loaded.fingerprint, record)
    return to_bytes(head, bits=plan.notes.get("bits"))


def _plain(name: str) -> str:
    """A file that travels need not say where its target lay."""
    return Path(name).name if Path(name).exists() else name
