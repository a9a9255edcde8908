"""Delayed: one line first, several paths from its end.

    root - a - b - c x2 - d x1      trunk of 2, then 3 paths
                 \\      \\ e x1
                  f x1 - g x1

First guesses are mostly right, and a second one beside them is mostly wasted; width pays where the draft has become
unsure. Where the paths part, and below, equal draws share a node that counts them.
"""

from dataclasses import dataclass, replace

from jaxtyping import Bool
from torch import Tensor

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import need_at_least
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import by_score
from draftwood.trees.spread import spread, whole_level


@dataclass(frozen=True, slots=True)
class Delayed(ByLevel):
    """`trunk` single draws, then `count` independent paths as long as the limit says. A level is drawn whole or, where it
    does not fit the budget, not at all."""

    trunk: int = 2
    count: int = 4

    def __post_init__(self) -> None:
        need_at_least("Delayed", trunk=(self.trunk, 0), count=(self.count, 1))

    @property
    def draw(self) -> Draw:
        return Draw.IID

    @property
    def shape(self) -> Shape:
        if self.count == 1:
            return Shape.CHAIN
        return Shape.TREE if self.trunk else Shape.PATHS

    def max_children(self, limit: Limit) -> int:
        return self.count

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        return replace(Growth.at_roots(base), carry=0)

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        level: int = growth.carry
        allowed = whole_level(allowed, self.draws(level + 1), limit)
        most = self.count if level >= self.trunk else 1
        # Behind the parting every path goes on by itself: a node that c of them go through draws c children.
        counts = growth.tree.copies.gather(1, growth.frontier.clamp_min(0)) if level > self.trunk else None
        return replace(spread(growth, q, most, self.draw, allowed, rnd, counts=counts), carry=level + 1)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)

    def draws(self, levels: int) -> int:
        """Draws that the first levels take, and so the nodes they may need."""
        return min(levels, self.trunk) + self.count * max(levels - self.trunk, 0)
