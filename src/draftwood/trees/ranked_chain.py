"""RankedChain: a chain whose nodes carry what was known of their chance before they were drawn.

    score(j) = log q(x_1) + .. + log q(x_(j-1)) + log max_v q_j(v)

The last term is the probability of the best token, not of the drawn one: where nodes of several sequences compete for one
budget, a cut by the drawn token's own probability would bias the output. Scores never grow: max q_j is at least q(x_j).
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from draftwood.core.legal_draws import Draw, Shape, need_draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.trees.by_level import ByLevel
from draftwood.trees.chain import Chain
from draftwood.trees.grow import by_score


@dataclass(frozen=True, slots=True)
class RankedChain(ByLevel):
    """`Chain` with these scores. `draw`: as there."""

    draw: Draw = Draw.IID
    shape: Shape = Shape.CHAIN

    def __post_init__(self) -> None:
        need_draw("RankedChain", self.draw)

    def max_children(self, limit: Limit) -> int:
        return 1

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        return replace(Growth.at_roots(base), carry=torch.zeros_like(base.tree.score[:, :1]))

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        reach: Float[Tensor, "B 1"] = growth.carry  # of the frontier: log-probability of all tokens on the way to it
        grown = Chain(self.draw).expand(growth, q, allowed, limit, rnd)
        if grown.tree.num_nodes == growth.tree.num_nodes:
            return grown
        best = q.prob.amax(1, keepdim=True).log().to(reach.dtype)  # one frontier node a sequence
        tree = grown.tree
        score = torch.cat([tree.score[:, :-1], reach + best], dim=1)
        rows = torch.arange(len(best), device=best.device)[:, None]
        own = q.at(rows, tree.tokens[:, -1:], rnd.requests[0].vocab_size).to(reach.dtype)
        # A greedy draft takes its best token, which rounding must not rank above what was known before.
        return replace(grown, tree=replace(tree, score=score), carry=reach + own.log().clamp_max(best))

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)
