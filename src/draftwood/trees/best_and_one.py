"""BestAndOne: of a node's k children the k - 1 best are given, and one is drawn from what they leave.

    q      .5  .3  .1  .1        given  .5 .3
                                 drawn from  0  0  .5  .5   and this is the distribution that is stored

The drawn child never lands on a given one, and the rule of one draw judges it. Its residual holds all of p on the given
tokens, so they are accepted whenever the target wants them: no rule keeps more of such a draft.
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
from draftwood.trees.by_level import ByLevel
from draftwood.trees.spread import spread, without_frontier
from draftwood.trees.static import Static, need_widths


@dataclass(frozen=True, slots=True)
class BestAndOne(ByLevel):
    """Every node at depth d gets widths[d] children, the last of them drawn: width 1 is a plain draw. The shape is that of
    a static tree; only what fills a level is another."""

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        need_widths("BestAndOne", self.widths)

    @property
    def draw(self) -> Draw:
        return Draw.DISTINCT  # one draw for a node; DISTINCT, because given siblings are never drawn again

    @property
    def shape(self) -> Shape:
        return self._plain.shape

    def max_children(self, limit: Limit) -> int:
        return self._plain.max_children(limit)

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        return self._plain.start(base, limit, rnd)

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        level: int = growth.carry
        if level >= len(self.widths) or self.widths[level] == 1:  # nothing is given here
            return self._plain.expand(growth, q, allowed, limit, rnd)
        count = self.widths[level] - 1
        best, rest = _parted(growth, q, count, allowed, rnd)
        # Given nodes stand before all draws of their level, so a budget cuts draws first; scores are known before either.
        given = spread(growth, best, count, Draw.GIVEN, allowed, rnd)
        base = replace(growth, tree=given.tree, q_index=given.q_index)
        grown = spread(base, rest, 1, self.draw, allowed, rnd)
        frontier = torch.cat([given.frontier, grown.frontier], dim=1)
        grown = replace(grown, frontier=frontier, carry=level + 1)
        return grown if self._plain.draws_level(level + 1, limit) else without_frontier(grown)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return self._plain.select(tree, limit)

    @property
    def num_nodes(self) -> int:
        """Drafted nodes of a full tree."""
        return self._plain.num_nodes

    @property
    def _plain(self) -> Static:
        return Static(self.widths, self.draw)


def _parted(
    growth: Growth, q: DraftProbs, count: int, allowed: Bool[Tensor, "B F"], rnd: Round
) -> tuple[DraftProbs, DraftProbs]:
    """The `count` best tokens of each distribution, nothing else left in it, and the distribution of the others. One is
    cut out of the other, so that among equals no token can be in both."""
    at = growth.frontier.clamp_min(0)
    probs = q.prob.view(*at.shape, -1)
    columns = rnd.draw(at, probs, count, Draw.GIVEN, allowed).view(len(q.prob), -1)
    # Where there are fewer tokens than asked for, nothing is left, and column 0 may be cut out as well.
    rest = q.prob.scatter(1, columns.clamp_min(0), 0.0)
    total = rest.sum(-1, keepdim=True)
    best = torch.where(rest > 0, 0.0, q.prob)
    return DraftProbs(best, q.ids), DraftProbs(torch.where(total > 0, rest / total, rest), q.ids)
