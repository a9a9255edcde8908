"""Small dialogues for tiny targets, in memory and on disk."""

import json
import random
from pathlib import Path

import numpy as np

from draftwood.train.data.dialogues import Dialogue


def dialogues(count: int = 24, *, vocab_size: int = 61, seed: int = 0, longest: int = 60) -> list[Dialogue]:
    rng = random.Random(seed)
    found: list[Dialogue] = []
    for _ in range(count):
        size, start = rng.randrange(20, longest), rng.randrange(2, 12)
        tokens = np.array([rng.randrange(vocab_size) for _ in range(size)], dtype=np.int32)
        found.append(Dialogue(tokens, ((start, size - rng.randrange(3)),), "chat"))
    return found


def write_data(folder: Path, count: int = 24, *, vocab_size: int = 258, seed: int = 0) -> Path:
    """A folder as `draftwood train data` would leave it, without a record."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number, own in (("train.jsonl", count, seed), ("heldout.jsonl", 4, seed + 1)):
        made = dialogues(number, vocab_size=vocab_size, seed=own)
        lines = [json.dumps({"kind": d.kind, "tokens": d.tokens.tolist(), "answers": d.answers}) for d in made]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder
