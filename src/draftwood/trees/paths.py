"""Paths: several continuations drawn independently of each other, stored as one tree.

    drawn   a b c      root - a x2 - b x1 - c x1
            a d d           \\      \\ d x1 - d x1
            e b a            e x1 - b x1 - a x1

A node that `c` paths go through draws c children. Equal ones share a node, which counts them: rules need to know how many
paths there were, and the target scores each beginning once.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import need_size
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import by_score
from draftwood.trees.spread import spread, whole_level


@dataclass(frozen=True, slots=True)
class Paths(ByLevel):
    """`count` paths, as long as the limit says. A level is drawn whole or, where it does not fit the budget, not at all."""

    count: int = 4

    def __post_init__(self) -> None:
        need_size("Paths", count=(self.count, 1))

    @property
    def draw(self) -> Draw:
        return Draw.IID

    @property
    def shape(self) -> Shape:
        return Shape.PATHS if self.count > 1 else Shape.CHAIN

    def max_children(self, limit: Limit) -> int:
        return self.count

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        return replace(Growth.at_roots(base), carry=0)

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        level: int = growth.carry
        allowed = whole_level(allowed, self.count * (level + 1), limit)
        through = growth.tree.copies.gather(1, growth.frontier.clamp_min(0))
        counts = through if level else torch.full_like(through, self.count)
        grown = spread(growth, q, self.count, self.draw, allowed, rnd, counts=counts)
        # No level has more nodes than there are paths; without this, places for all that might be would multiply.
        last = grown.tree.num_nodes
        ahead = torch.where(grown.frontier >= 0, grown.frontier, last).sort(1).values[:, : self.count]
        return replace(grown, frontier=torch.where(ahead < last, ahead, -1), carry=level + 1)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)
