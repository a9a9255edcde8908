"""Writes GGUF files: the header from metadata and tensor sizes, then the tensors in that order."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from draftwood.models.loading.gguf.header import SCALARS, TYPES

ALIGNMENT = 32
NUMBERS = {label: number for number, (label, _, _) in TYPES.items()}
UNUSED = 5  # type of a token that no text contains


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor: its shape, rows first, and the name of its type."""

    name: str
    shape: tuple[int, ...]
    label: str

    @property
    def num_bytes(self) -> int:
        _, block, block_bytes = TYPES[NUMBERS[self.label]]
        return int(np.prod(self.shape, dtype=np.int64)) // block * block_bytes


def write_header(file: BinaryIO, metadata: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """All that stands before the first tensor. Each tensor begins after `pad`, as does the end of the file."""
    file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(entries), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + _value(value))
    at = 0
    for entry in entries:
        shape = struct.pack(f"<I{len(entry.shape)}Q", len(entry.shape), *reversed(entry.shape))
        file.write(_string(entry.name) + shape + struct.pack("<IQ", NUMBERS[entry.label], at))
        at += -(-entry.num_bytes // ALIGNMENT) * ALIGNMENT


def pad(file: BinaryIO) -> None:
    """Zeros up to the next place where a tensor may begin."""
    file.write(b"\0" * (-file.tell() % ALIGNMENT))


def padded_tokenizer(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """The tokenizer's part of the metadata of a file, its vocabulary filled up with tokens that no text contains."""
    tokenizer = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    tokens = list(tokenizer["tokenizer.ggml.tokens"])
    extra = vocab_size - len(tokens)
    if extra < 0:
        raise ValueError(f"a vocabulary of {vocab_size} is smaller than the tokenizer's, {len(tokens)}")
    kinds = [*map(int, tokenizer["tokenizer.ggml.token_type"]), *[UNUSED] * extra]
    return tokenizer | {
        "tokenizer.ggml.tokens": tokens + [f"[PAD{i}]" for i in range(len(tokens), vocab_size)],
        "tokenizer.ggml.token_type": np.array(kinds, "<i4"),
    }


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    """One metadata value behind the number of its type."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(each) for each in value)
    array: np.ndarray = value
    number = next(n for n, code in SCALARS.items() if np.dtype(code) == array.dtype)
    return struct.pack("<IIQ", 9, number, len(array)) + array.tobytes()
