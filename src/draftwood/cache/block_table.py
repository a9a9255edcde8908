"""BlockTable: which blocks of a cache belong to which slots. Host numbers only.

    slot 3   | block 7 | block 2 | block 9 |      |     entries 0-15, 16-31, 32-47
    slot 4   | block 7 | block 5 |                      shares its first 16 entries with slot 3

A block that several slots hold is full and lies before the end of each text, so nothing writes to it.
"""

from collections.abc import Sequence

import numpy as np

from draftwood.errors import EngineError, OutOfBlocks

ZEROS, PADDING = 0, 1  # a block that holds zeros for ever, and one that padding writes to
FIRST = 2


class BlockTable:
    """`columns`: blocks of a slot at most. Rows end with ZEROS."""

    def __init__(self, slots: int, columns: int, blocks: int) -> None:
        self.rows = np.zeros((slots, columns), dtype=np.int64)
        self.counts = [0] * slots
        self.refs = [0] * blocks
        self.free = list(range(blocks - 1, FIRST - 1, -1))  # the last is taken next
        self.changed: set[int] = set()  # slots

    def grow(self, blocks: int) -> None:
        """`blocks` in all."""
        have = len(self.refs)
        self.free = [*range(blocks - 1, have - 1, -1), *self.free]
        self.refs += [0] * (blocks - have)

    def append(self, slot: int, count: int) -> list[int]:
        """New blocks behind those of a slot."""
        if count > len(self.free):
            raise OutOfBlocks(f"slot {slot} needs {count} blocks, {len(self.free)} are free")
        taken = [self.free.pop() for _ in range(count)]
        for block in taken:
            self.refs[block] += 1
        self._put(slot, taken)
        return taken

    def share(self, slot: int, other: int, count: int) -> None:
        """The first `count` blocks of `other`, behind those of a slot."""
        shared = self.of(other)[:count]
        for block in shared:
            self.refs[block] += 1
        self._put(slot, shared)

    def cut(self, slot: int, count: int) -> None:
        """Give back all blocks of a slot but the first `count`."""
        for block in self.of(slot)[count:]:
            self.drop(block)
        if count < self.counts[slot]:
            self.rows[slot, count : self.counts[slot]] = ZEROS
            self.counts[slot] = count
            self.changed.add(slot)

    def hold(self, block: int) -> None:
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.free.append(block)

    def of(self, slot: int) -> list[int]:
        return self.rows[slot, : self.counts[slot]].tolist()

    def _put(self, slot: int, blocks: Sequence[int]) -> None:
        if blocks:
            at = self.counts[slot]
            self.rows[slot, at : at + len(blocks)] = blocks
            self.counts[slot] = at + len(blocks)
            self.changed.add(slot)

    def check(self) -> None:
        """EngineError if a block is counted wrong."""
        held = [0] * len(self.refs)
        for slot in range(len(self.counts)):
            for block in self.of(slot):
                held[block] += 1
        if held != self.refs:
            wrong = [b for b, (x, y) in enumerate(zip(held, self.refs, strict=True)) if x != y]
            raise EngineError(f"blocks {wrong[:8]} are held by another number of slots than is counted")
        if any(held[:FIRST]) or sorted(self.free) != [b for b in range(FIRST, len(held)) if held[b] == 0]:
            raise EngineError("a block is both free and held, or neither")
