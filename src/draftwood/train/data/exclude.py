"""Exclusion of benchmark questions: no dialogue may share 13 consecutive tokens with one.

Every window of 13 tokens of the questions is stored, and every window of a dialogue is looked up. Questions shorter than a
window are compared by their words: an equal user turn is excluded too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.errors import OptionError
from draftwood.models.loading.folder_cache import sha256
from draftwood.models.loading.tokenizer import Tokenizer
from draftwood.train.data.chat_turns import key_of
from draftwood.train.data.dialogues import lines_of

WINDOW = 13


@dataclass(frozen=True, slots=True, eq=False)
class Exclusion:
    """The windows of all questions. `files` are their sources."""

    windows: frozenset[bytes] = frozenset()
    keys: frozenset[str] = frozenset()
    files: tuple[dict[str, Any], ...] = ()

    def overlaps(self, tokens: Sequence[int] | np.ndarray) -> bool:
        """Whether 13 consecutive tokens of these occur in a question."""
        return bool(self.windows) and not self.windows.isdisjoint(windows_of(tokens))

    def is_question(self, turn: str) -> bool:
        """Whether a user turn has the same words as a question."""
        return key_of(turn) in self.keys


def windows_of(tokens: Sequence[int] | np.ndarray) -> list[bytes]:
    """Every 13 consecutive tokens, as the bytes of 32-bit integers."""
    if len(tokens) < WINDOW:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, dtype=np.int32), WINDOW)
    return np.ascontiguousarray(windows).view(f"V{4 * WINDOW}")[:, 0].tolist()


def read_exclusion(files: Sequence[Path], tokenizer: Tokenizer) -> Exclusion:
    """Questions of .jsonl files (.gz too): {"turns": [...]} or {"prompt": "..."}. A line without either is an error, because
    its question would silently not be excluded."""
    texts: list[str] = []
    about: list[dict[str, Any]] = []
    for file in files:
        found = [text for number, line in enumerate(lines_of(file), 1) for text in _texts(file, number, line)]
        if not found:
            raise OptionError(f'{file} holds no questions\nhint: one JSON object a line, {{"turns": ["..."]}}')
        about.append({"name": file.name, "sha256": sha256(file), "questions": len(found)})
        texts += found
    # A first word has other tokens after a space than at the start of a text; both are excluded.
    spelt = [spelling for text in texts for spelling in (text, " " + text.lstrip())]
    ids = tokenizer.backend.encode_batch(spelt, add_special_tokens=False)
    windows = frozenset(window for e in ids for window in windows_of(e.ids))
    return Exclusion(windows, frozenset(map(key_of, texts)), tuple(about))


def _texts(file: Path, number: int, line: bytes) -> list[str]:
    if not line.strip():
        return []
    try:
        entry = json.loads(line)
        said = entry["turns"] if "turns" in entry else [entry["prompt"]]
        if not isinstance(said, list) or not all(isinstance(text, str) for text in said):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise OptionError(
            f'{file}, line {number}: not a question\nhint: {{"turns": ["..."]}} or {{"prompt": "..."}}'
        ) from None
    return said
