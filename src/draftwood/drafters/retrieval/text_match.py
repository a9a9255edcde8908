"""Matching by text: a text whose tokens are split differently still continues in a prediction.

prediction    re | named | _file          offsets of its tokens
answer        rename                      ends inside of `named`
draft                d | _file            the rest of the prediction's text, tokenised anew
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

LEAST = 4  # bytes that must agree: fewer occur anywhere
TAIL = 48  # bytes of the answer that are compared
BEFORE, AFTER = 64, 256  # tokens around the cursor whose text is searched: a seam lies near it, and the work is bounded


class Spelling(Protocol):
    """What is used of a tokenizer."""

    def token_bytes(self, token: int) -> bytes: ...
    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Rest:
    """What follows an offset of a prediction's text: tokens, and the token of the prediction that each begins in.
    `agreed`: bytes before."""

    tokens: list[int]
    positions: list[int]
    agreed: int


@dataclass(slots=True)
class TextMatch:
    """The text of a prediction around a cursor. Bytes of tokens are looked up once."""

    spelling: Spelling
    known: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def bytes_of(self, tokens: Sequence[int]) -> list[bytes]:
        for token in tokens:
            if token not in self.known:
                self.known[token] = self.spelling.token_bytes(token)
        return [self.known[token] for token in tokens]

    def rest(self, prediction: Sequence[int], cursor: int, output: Sequence[int], depth: int) -> Rest | None:
        """What follows in the prediction where its text agrees longest with the end of the output: the nearest place at or
        after the cursor, else the nearest before it. At least `depth` tokens, as far as there are any."""
        tail = b"".join(self.bytes_of(output[-TAIL:]))[-TAIL:]
        first = max(0, cursor - BEFORE)
        pieces = self.bytes_of(prediction[first : cursor + AFTER])
        data, starts = b"".join(pieces), [0, *accumulate(map(len, pieces))]
        agreed = longest_suffix(data, tail)
        if agreed < LEAST or not tail[-agreed:].strip():
            return None
        offset = _nearest(data, tail[-agreed:], starts[cursor - first]) + agreed
        at = bisect_left(starts, offset)
        if starts[at] == offset:
            count = min(depth, len(pieces) - at)
            positions = range(first + at, first + at + count)
            return Rest(list(prediction[positions.start : positions.stop]), list(positions), agreed)
        last = min(at + depth, len(pieces))
        tokens = self.spelled(data[offset : starts[last]])
        begins = accumulate(map(len, self.bytes_of(tokens)), initial=offset)
        positions = [first + bisect_right(starts, begin) - 1 for begin, _ in zip(begins, tokens, strict=False)]
        return Rest(tokens, positions, agreed)

    def spelled(self, data: bytes) -> list[int]:
        """The tokens of this text in the middle of another one; none where it begins inside of a character, or where its
        tokens would spell something else."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:  # the end of the data may cut a character
            text = data[: error.start].decode()
        wanted = text.encode()
        for lead in ("", "\n"):  # some tokenizers put a space before a text; a line feed keeps it away from this one
            tokens = self.spelling.encode(lead + text)
            pieces = self.bytes_of(tokens)
            for skipped in range(len(tokens) + 1):
                if sum(map(len, pieces[skipped:])) <= len(wanted):
                    if b"".join(pieces[skipped:]) == wanted:
                        return tokens[skipped:]
                    break
        return []


def longest_suffix(data: bytes, tail: bytes) -> int:
    """How many of the last bytes of `tail` occur together in `data`. If n do, so do fewer: a binary search."""
    low, high = 0, len(tail)
    while low < high:
        middle = (low + high + 1) // 2
        if tail[-middle:] in data:
            low = middle
        else:
            high = middle - 1
    return low


def _nearest(data: bytes, key: bytes, cursor: int) -> int:
    """Where `key` begins: the first place that ends at or after the cursor, else the last one before it."""
    at = data.find(key, max(0, cursor - len(key)))
    return at if at >= 0 else data.rfind(key)
