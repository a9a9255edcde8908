"""Chain: one child per node."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood.core.legal_draws import Draw, Shape, need_draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import by_score
from draftwood.trees.spread import spread, with_children


@dataclass(frozen=True, slots=True)
class Chain(ByLevel):
    """A single line of tokens, as long as the limit says.

    draw IID: each token is drawn from q (one draw: with or without replacement is the same).
    draw GIVEN: each token is what q would emit with the target's own uniform of that position. Nothing is claimed about
    its distribution, so only rules that ignore q may judge it; where q is close to p they agree far more often than two
    independent samples would.
    """

    draw: Draw = Draw.IID
    shape: Shape = Shape.CHAIN

    def __post_init__(self) -> None:
        need_draw("Chain", self.draw)

    def max_children(self, limit: Limit) -> int:
        return 1

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        return Growth.at_roots(base)

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        if self.draw is not Draw.GIVEN or rnd.sampler.all_greedy:  # a greedy q would emit its best token
            return spread(growth, q, 1, self.draw, allowed, rnd)
        depth = torch.full_like(growth.frontier[:, 0], growth.level or 0)
        column = rnd.guess(depth, q.prob, allowed[:, 0])
        return with_children(growth, q, column[:, None, None], self.draw, allowed)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)
