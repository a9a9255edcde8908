"""Exclusion of benchmark questions: no dialogue may share 13 consecutive tokens with one.

Every window of 13 tokens of the questions is stored with a 64-bit polynomial hash, sorted. A dialogue's windows are hashed
and looked up; a hit is compared token by token, so a hash collision excludes nothing. Questions shorter than a window are
compared by their words: an equal user turn is excluded too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.errors import OptionError
from draftwood.models.loading.folder_cache import sha256
from draftwood.models.loading.tokenizer import Tokenizer
from draftwood.train.data.chat_turns import key_of
from draftwood.train.data.dialogues import lines_of

WINDOW = 13
_STEP = np.uint64(0x9E3779B97F4A7C15)  # odd, so that every token affects the hash modulo 2^64


@dataclass(frozen=True, slots=True, eq=False)
class Exclusion:
    """The windows of all questions, sorted by hash. `files` are their sources."""

    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    windows: np.ndarray = field(default_factory=lambda: np.zeros((0, WINDOW), dtype=np.int32))  # ordered as `hashes`
    keys: frozenset[str] = frozenset()
    files: tuple[dict[str, Any], ...] = ()

    def overlaps(self, tokens: Sequence[int] | np.ndarray) -> bool:
        """Whether 13 consecutive tokens of these occur in a question."""
        if not len(self.hashes) or len(tokens) < WINDOW:
            return False
        found = windows_of(np.asarray(tokens, dtype=np.int32))
        hashed = hash_windows(found)
        left = np.searchsorted(self.hashes, hashed, side="left")
        right = np.searchsorted(self.hashes, hashed, side="right")
        near = np.flatnonzero(right > left)
        return any((self.windows[left[i] : right[i]] == found[i]).all(axis=1).any() for i in near)

    def is_question(self, turn: str) -> bool:
        """Whether a user turn has the same words as a question."""
        return key_of(turn) in self.keys


def windows_of(tokens: np.ndarray) -> np.ndarray:
    """[T] -> [T - 12, 13], without copying."""
    return np.lib.stride_tricks.sliding_window_view(tokens, WINDOW)


def hash_windows(windows: np.ndarray) -> np.ndarray:
    """sum_k (token_k + 1) * step^k modulo 2^64, for each window."""
    total = np.zeros(len(windows), dtype=np.uint64)
    for k in range(WINDOW):
        total = total * _STEP + windows[:, k].astype(np.uint64) + np.uint64(1)
    return total


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
    long = [windows_of(np.asarray(e.ids, dtype=np.int32)) for e in ids if len(e.ids) >= WINDOW]
    windows = np.unique(np.concatenate(long), axis=0) if long else np.zeros((0, WINDOW), dtype=np.int32)
    hashes = hash_windows(windows)
    order = np.argsort(hashes, kind="stable")
    return Exclusion(hashes[order], windows[order], frozenset(key_of(text) for text in texts), tuple(about))


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
