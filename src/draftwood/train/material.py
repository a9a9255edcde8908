"""The texts of a run: dialogues to learn from, dialogues to look at, and what is odd about them."""

import json
from pathlib import Path
from typing import Any

from draftwood.models.load import Loaded
from draftwood.train import dialogues as data
from draftwood.train.dialogues import Dialogues


def read(path: Path, loaded: Loaded) -> tuple[Dialogues, Dialogues, list[str]]:
    """(to learn from, held out, complaints). Without held-out ones, the first are looked at too."""
    vocab, tokenizer = loaded.model.vocab, loaded.tokenizer
    train = data.read(path, tokenizer, vocab)
    file = path / data.HELDOUT
    held = data.read(file, tokenizer, vocab) if file.is_file() and file.stat().st_size else train
    found = [train.complaint(), None if held is train else held.complaint(), _stranger(path, loaded)]
    return train, held, [complaint for complaint in found if complaint]


def record(path: Path) -> dict[str, Any]:
    """What `draftwood train data` wrote beside the dialogues; empty where nobody did."""
    try:
        raw = json.loads((path / data.RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _stranger(path: Path, loaded: Loaded) -> str | None:
    writer = record(path).get("target")
    if not isinstance(writer, dict) or writer.get("fingerprint") in (None, loaded.fingerprint):
        return None
    return (
        f"{path} was written by {writer.get('name')}, not by {loaded.name}: "
        "a drafter learns best from what its own target writes"
    )
