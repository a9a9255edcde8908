"""Static: the same shape every round, given by its widths."""

from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from draftwood.core.legal_draws import Draw, Shape, need_draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError, need_size
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import by_score
from draftwood.trees.spread import spread, whole_level, without_frontier


@dataclass(frozen=True, slots=True)
class Static(ByLevel):
    """Every node at depth d gets widths[d] children: (4, 2, 2) has levels of 4, 8 and 16 nodes."""

    widths: tuple[int, ...]
    draw: Draw = Draw.DISTINCT

    def __post_init__(self) -> None:
        need_widths("Static", self.widths)
        need_draw("Static", self.draw)

    @property
    def shape(self) -> Shape:
        return Shape.CHAIN if all(width == 1 for width in self.widths) else Shape.TREE

    def max_children(self, limit: Limit) -> int:
        return max(self.widths[: limit.tier.depth], default=0)

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        growth = replace(Growth.at_roots(base), carry=0)
        return growth if self.draws_level(0, limit) else without_frontier(growth)

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        level: int = growth.carry
        if not self.draws_level(level, limit):
            return without_frontier(growth)
        if self.draw is Draw.IID:
            allowed = whole_level(allowed, self._draws(level + 1), limit)
        grown = replace(spread(growth, q, self.widths[level], self.draw, allowed, rnd), carry=level + 1)
        return grown if self.draws_level(level + 1, limit) else without_frontier(grown)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)

    @property
    def num_nodes(self) -> int:
        """Drafted nodes of a full tree."""
        return self._draws(len(self.widths))

    def draws_level(self, level: int, limit: Limit) -> bool:
        """Whether any sequence may draw this level."""
        there = level < len(self.widths)
        return there and (self.draw is not Draw.IID or self._draws(level + 1) < limit.tier.nodes)

    def _draws(self, levels: int) -> int:
        """Draws that the first levels take."""
        return sum(accumulate(self.widths[:levels], mul))


def need_widths(part: str, widths: Any) -> None:
    """OptionError, in the name of the part, if there are too many levels or one of them is no width."""
    if not isinstance(widths, tuple | list):
        raise OptionError(f"{part}: widths cannot be {widths!r}\nhint: one for each level, such as (2, 2, 1)")
    need_size(part, levels=(len(widths), 0))
    for width in widths:
        need_size(part, width=(width, 1))
