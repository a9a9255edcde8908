"""Blocks: which blocks of a cache belong to which slots, and which can be given to others. Host numbers only.

    slot 3   | block 7 | block 2 | block 9 |       entries 0-31, 32-63, 64-95
    slot 4   | block 7 | block 5 |                 shares its first 32 entries with slot 3

    a block is      free      it holds nothing
                    held      by one slot, or, if it is full and published, by several
                    idle      published, and no slot holds it: it is found by later texts until its room is needed

Nothing writes to a published block.
"""

from collections.abc import Sequence

import numpy as np

from draftwood.cache.prefix_tree import Above, PrefixTree
from draftwood.errors import EngineError
from draftwood.kernels.cpu.library import BLOCK_ENTRIES as SIZE


class Blocks:
    """`columns`: blocks of a slot at most."""

    def __init__(self, slots: int, columns: int, blocks: int) -> None:
        self.rows = np.zeros((slots, columns), dtype=np.int32)
        self.counts = [0] * slots
        self.refs = [0] * blocks
        self.free = list(range(blocks - 1, -1, -1))  # the last is taken next
        self.tree = PrefixTree(SIZE)
        self.straight = [True] * slots  # whether the blocks of each slot stand one behind the other
        self.published = [0] * slots  # full blocks of each slot that are in the tree: its first ones

    @property
    def available(self) -> int:
        """Blocks that a slot can get, without more of them."""
        return len(self.free) + len(self.tree.idle)

    def grow(self, blocks: int) -> None:
        """`blocks` in all."""
        have = len(self.refs)
        self.free = [*range(blocks - 1, have - 1, -1), *self.free]
        self.refs += [0] * (blocks - have)

    def of(self, slot: int) -> list[int]:
        return self.rows[slot, : self.counts[slot]].tolist()

    def append(self, slot: int, count: int) -> None:
        """Blocks for a slot alone, behind those that it holds. The caller has seen that so many are available."""
        for _ in range(count):
            if not self.free:
                self.give_up()
            block = self.free.pop()
            self.refs[block] = 1
            self._put(slot, block)

    def hold(self, slot: int, blocks: Sequence[int]) -> None:
        """Published blocks for a slot that holds none."""
        for block in blocks:
            self.refs[block] += 1
            self.tree.idle.pop(block, None)
            self._put(slot, block)
        self.published[slot] = len(blocks)

    def take_over(self, slot: int, block: int) -> None:
        """An idle block that is not full becomes the slot's own; it is found no more."""
        self.tree.remove(block)
        self.refs[block] = 1
        self._put(slot, block)

    def publish(self, slot: int, before: tuple[int, ...], tokens: Sequence[int]) -> None:
        """The next full block of a slot, with these tokens. If another block holds the same, the slot holds that one."""
        i = self.published[slot]
        own = int(self.rows[slot, i])
        found = self.tree.add(own, self.above(slot, i, before), tuple(tokens))
        if found != own:
            self.refs[found] += 1
            self.tree.idle.pop(found, None)
            self.rows[slot, i] = found
            self.straight[slot] = False
            self._drop(own)
        self.published[slot] = i + 1

    def publish_end(self, slot: int, before: tuple[int, ...], tokens: Sequence[int]) -> None:
        """The last block of a text, which is not full. Its slot gives it up next."""
        i = self.published[slot]
        self.tree.add_end(int(self.rows[slot, i]), self.above(slot, i, before), tuple(tokens))

    def cut(self, slot: int, count: int) -> None:
        """Give back all blocks of a slot but the first `count`, the last of them first."""
        for block in reversed(self.of(slot)[count:]):
            self._drop(block)
        self.counts[slot] = min(self.counts[slot], count)
        self.published[slot] = min(self.published[slot], count)
        self.straight[slot] = self.straight[slot] or not self.counts[slot]

    def forget(self) -> None:
        """Idle blocks become free ones."""
        while self.tree.idle:
            self.give_up()

    def give_up(self) -> None:
        """The idle block that was unused for longest becomes a free one."""
        block = self.tree.oldest()
        self.tree.remove(block)
        self.free.append(block)

    def above(self, slot: int, i: int, before: tuple[int, ...]) -> Above:
        """What block `i` of a slot stands behind."""
        return int(self.rows[slot, i - 1]) if i else before

    def _put(self, slot: int, block: int) -> None:
        at = self.counts[slot]
        if at and self.rows[slot, at - 1] + 1 != block:
            self.straight[slot] = False
        self.rows[slot, at] = block
        self.counts[slot] = at + 1

    def _drop(self, block: int) -> None:
        self.refs[block] -= 1
        if self.refs[block] == 0:
            if block in self.tree.known:
                self.tree.idle[block] = None
            else:
                self.free.append(block)

    def check(self) -> None:
        """EngineError if a block is counted wrong, or lost."""
        held = [0] * len(self.refs)
        for slot in range(len(self.counts)):
            for block in self.of(slot):
                held[block] += 1
        if held != self.refs:
            wrong = [b for b, (x, y) in enumerate(zip(held, self.refs, strict=True)) if x != y]
            raise EngineError(f"blocks {wrong[:8]} are held by another number of slots than is counted")
        unheld = [b for b, count in enumerate(held) if count == 0]
        if sorted([*self.free, *self.tree.idle]) != unheld:
            raise EngineError("a block is in two of free, held and idle, or in none of them")
        for slot in range(len(self.counts)):
            row = self.of(slot)
            if self.straight[slot] and row != list(range(row[0], row[0] + len(row)) if row else []):
                raise EngineError(f"slot {slot} does not hold consecutive blocks: {row}")
            for i, block in enumerate(row):
                if i >= self.published[slot] and (held[block] > 1 or block in self.tree.known):
                    raise EngineError(f"slot {slot} writes to block {block}, which others find or hold")
                if i < self.published[slot] and block not in self.tree.known:
                    raise EngineError(f"slot {slot} has published block {block}, which is not known")
        self.tree.check(lambda block: held[block] > 0)
