"""Shaped: one irregular tree, the same every round, given by its parents."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood.core.host import put
from draftwood.core.legal_draws import Draw, Shape, need_draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.trees.best_shape import Topology
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import by_score
from draftwood.trees.spread import spread, without_frontier


@dataclass(frozen=True, slots=True)
class Shaped(ByLevel):
    """A topology filled with tokens: the i-th child is the i-th draw without replacement, or the i-th best token."""

    parents: Topology
    draw: Draw = Draw.DISTINCT

    def __post_init__(self) -> None:
        if any(not isinstance(p, int) or not 0 <= p <= i for i, p in enumerate(self.parents)) or list(
            self.parents
        ) != sorted(self.parents):
            raise OptionError(
                f"Shaped: parents cannot be {self.parents}\nhint: level by level, such as (0, 0, 1, 1); the root is 0"
            )
        need_draw("Shaped", self.draw)
        if self.draw is Draw.IID:
            raise OptionError("Shaped: equal independent draws would share a place\nhint: distinct or given ones")

    @property
    def shape(self) -> Shape:
        return Shape.CHAIN if len(set(self.parents)) == len(self.parents) else Shape.TREE

    @property
    def depth(self) -> int:
        return len(self._levels())

    @property
    def num_nodes(self) -> int:
        """Drafted nodes of a full tree."""
        return len(self.parents)

    def _levels(self) -> list[list[int]]:
        """Children of every node of each level that has any."""
        counts = [self.parents.count(node) for node in range(len(self.parents) + 1)]
        levels: list[list[int]] = []
        first, width = 0, 1
        while sum(counts[first : first + width]):
            levels.append(counts[first : first + width])
            first, width = first + width, sum(levels[-1])
        return levels

    def max_children(self, limit: Limit) -> int:
        return max((max(counts) for counts in self._levels()[: limit.tier.depth]), default=0)

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        levels, growth = self._levels(), Growth.at_roots(base)
        return replace(growth, carry=levels) if levels else without_frontier(replace(growth, carry=levels))

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        levels: list[list[int]] = growth.carry
        if not levels:
            return without_frontier(growth)
        counts, most = levels[0], max(levels[0])
        asked = put(counts, rnd.device).expand_as(growth.frontier)
        grown = spread(growth, q, most, self.draw, allowed & (asked > 0), rnd, counts=asked)
        # Places that the topology does not have are dropped at once: level upon level they would multiply.
        old = growth.tree.num_nodes
        real = [node * most + rank for node, count in enumerate(counts) for rank in range(count)]
        kept = put([*range(old), *(old + place for place in real)], rnd.device)
        frontier = grown.frontier[:, put(real, rnd.device)]
        back = torch.arange(old, old + len(real), device=rnd.device)
        grown = replace(
            grown,
            tree=grown.tree.take_nodes(kept.expand(rnd.batch, -1)),
            q_index=grown.q_index[:, kept],
            frontier=torch.where(frontier >= 0, back, -1),
            carry=levels[1:],
        )
        return grown if levels[1:] else without_frontier(grown)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)
