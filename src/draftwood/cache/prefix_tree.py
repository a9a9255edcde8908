"""PrefixTree: which blocks hold the entries of which tokens, so that texts that begin alike find them. Host numbers only.

    (tenant)  block 7: a b c d  block 2: e f g h  block 9: i j       the last one is not full
                                block 5: e f x y                     another text behind the same first block

A block is known by the block before it and by its own tokens, all of them compared: nothing rests on a hash. The first block
of a text is known by the tokens in front of it that have no entries.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftwood.core.common_prefix import common_prefix
from draftwood.errors import EngineError

Above = int | tuple[int, ...]
"""The block before, or the tokens in front of the first."""


@dataclass(frozen=True, slots=True)
class Known:
    """A block of the tree."""

    above: Above
    tokens: tuple[int, ...]


@dataclass(slots=True)
class PrefixTree:
    """`idle`: blocks that no slot holds. The first of them is given up first: it was unused for longest, and nothing follows
    it, because the blocks of a text become idle from its end on."""

    size: int  # tokens of a full block
    known: dict[int, Known] = field(default_factory=dict[int, Known])
    below: dict[Above, dict[tuple[int, ...], int]] = field(default_factory=dict[Above, dict[tuple[int, ...], int]])
    idle: "OrderedDict[int, None]" = field(default_factory=OrderedDict[int, None])

    def add(self, block: int, above: Above, tokens: tuple[int, ...]) -> int:
        """The block that holds these tokens behind `above`: one that does already, or this one from now on."""
        here = self.below.setdefault(above, {})
        if tokens in here:
            return here[tokens]
        here[tokens] = block
        self.known[block] = Known(above, tokens)
        return block

    def add_end(self, block: int, above: Above, tokens: tuple[int, ...]) -> bool:
        """The last block of a text, which is not full. False if another block begins with these tokens."""
        near = self.nearest(above, tokens)
        if near is not None and near[1] == len(tokens):
            return False
        return self.add(block, above, tokens) == block

    def find(self, before: tuple[int, ...], tokens: Sequence[int]) -> list[int]:
        """The full blocks that a text begins with."""
        above: Above = before
        found: list[int] = []
        for start in range(0, len(tokens) - self.size + 1, self.size):
            block = self.below.get(above, {}).get(tuple(tokens[start : start + self.size]))
            if block is None:
                break
            found.append(block)
            above = block
        return found

    def nearest(self, above: Above, tokens: Sequence[int]) -> tuple[int, int] | None:
        """The block behind `above` that agrees with these tokens for longest, and how many of its tokens do."""
        best: tuple[int, int] | None = None
        for held, block in self.below.get(above, {}).items():
            agree = common_prefix(held, tokens)
            if agree and (best is None or agree > best[1]):
                best = block, agree
        return best

    def oldest(self) -> int:
        """The block to give up first."""
        return next(iter(self.idle))

    def remove(self, block: int) -> None:
        """Nothing is found in this block any more. Nothing may follow it."""
        if self.below.get(block):
            raise EngineError(f"block {block} is given up before those that follow it")
        own = self.known.pop(block)
        here = self.below[own.above]
        del here[own.tokens]
        if not here:
            del self.below[own.above]
        self.below.pop(block, None)
        self.idle.pop(block, None)

    def check(self, is_held: Callable[[int], bool]) -> None:
        """EngineError if the parts of the tree contradict each other. `is_held`: whether a slot holds a block."""
        listed = {block: Known(above, tokens) for above, each in self.below.items() for tokens, block in each.items()}
        if listed != self.known:
            raise EngineError("a block is known by other tokens than it is found by")
        for block, own in self.known.items():
            if not 0 < len(own.tokens) <= self.size:
                raise EngineError(f"block {block} is known by {len(own.tokens)} tokens, it has room for {self.size}")
            if isinstance(own.above, int) and len(self.known.get(own.above, own).tokens) < self.size:
                raise EngineError(f"block {block} follows one that is not full")
            if isinstance(own.above, int) and own.above not in self.known:
                raise EngineError(f"block {block} follows block {own.above}, which is not known")
            if is_held(block) == (block in self.idle):
                raise EngineError(f"block {block} is both held and idle, or neither")
        at = {block: i for i, block in enumerate(self.idle)}
        for block, i in at.items():
            above = self.known[block].above if block in self.known else block
            if at.get(above, len(at)) <= i if isinstance(above, int) else False:
                raise EngineError(f"block {block} would be given up after block {above}, which it follows")
