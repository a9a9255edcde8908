"""Typical: a drafted token is kept if the target finds it probable enough, of several kept paths the deepest. LOSSY.

    keep x after a node with distribution p    p(x) >= min(most, share exp(-H(p)), max p)      H: the entropy in nats

The flatter p, the lower the threshold. Of equally deep paths the one with the greatest product of p is kept. The token after
it is drawn from p with all tokens below the threshold left out. So the output is a truncated sample, and less varied than
the target's: with p = (.5, .3, .2), most .25 and share 1 only the first two tokens can be emitted.

For a greedy sequence p is one-hot, and the rule is that of plain decoding.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import TARGET, Round
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED
from draftwood.core.verdict import Verdict
from draftwood.errors import OptionError
from draftwood.verifiers.walk import follow


@dataclass(frozen=True, slots=True)
class Typical:
    """`most`: no threshold is above it; `share`: of exp(-H), which is the typical probability of a token."""

    most: float = 0.09
    share: float = 0.3
    needs: Needs = Needs()
    lossless: bool = False
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})
    shapes: frozenset[Shape] = frozenset(Shape)

    def __post_init__(self) -> None:
        for option, value in (("most", self.most), ("share", self.share)):
            if not 0 < value <= 1:
                raise OptionError(f"Typical: {option} cannot be {value}\nhint: more than 0 and at most 1")

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        tree, levels = proposal.tree, proposal.levels
        if target.simple:  # one-hot distributions
            return follow(proposal, target.best())
        batch, nodes = tree.tokens.shape
        index = torch.arange(nodes, device=tree.tokens.device).expand(batch, -1)
        scored = tree.live & (tree.role == SCORED)
        p = target.dense(index, scored)
        p = torch.where(p >= self.thresholds(p)[..., None], p, 0.0)  # [B, N, V]
        above = tree.parents.clamp_min(0)
        own = p[torch.arange(batch, device=p.device)[:, None], above, tree.tokens]  # 0 for what is not typical
        depth = proposal.node_depths()
        kept = tree.keep(scored & (own > 0), levels).live & scored
        chance = _products(torch.where(index > 0, own.double(), 1.0), above, levels)
        # The deepest kept node; chances are at most 1, so they only decide among equally deep ones.
        rank = torch.where(kept, 2 * depth + chance, -1.0)
        end = rank.argmax(1)
        token = rnd.pick(
            TARGET, depth.gather(1, end[:, None])[:, 0], _at(p, end), torch.ones_like(end, dtype=torch.bool)
        )
        return _verdict(proposal, end, token)

    def thresholds(self, p: Float[Tensor, "*S V"]) -> Float[Tensor, "*S"]:
        """What a token's probability must reach. The best token always does."""
        typical = self.share * torch.special.entr(p).sum(-1).neg().exp()
        return torch.minimum(typical.clamp_max(self.most), p.amax(-1))


def _products(own: Float[Tensor, "B N"], above: Int[Tensor, "B N"], levels: int) -> Float[Tensor, "B N"]:
    """Of each node's number and those above it, the root's being 1, by pointer doubling."""
    jump, passes = above, max(levels, 1).bit_length()
    for _ in range(passes):
        own = own * own.gather(1, jump)
        jump = jump.gather(1, jump)
    return own


def _at(p: Float[Tensor, "B N V"], node: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
    return p[torch.arange(len(node), device=p.device), node]


def _verdict(proposal: Proposal, end: Int[Tensor, "B"], token: Int[Tensor, "B"]) -> Verdict:
    """The path to one node of each sequence, without a host read."""
    tree, levels = proposal.tree, proposal.levels
    index = torch.arange(tree.num_nodes, device=end.device)
    on_path = tree.ancestors()[torch.arange(len(end), device=end.device), end]  # [B, N]
    column = torch.where(on_path, proposal.node_depths(), levels + 1)
    path = torch.full((tree.batch, levels + 2), -1, device=end.device)
    path = path.scatter_(1, column, index.expand_as(column))[:, :-1]
    return Verdict(path=path, count=(path >= 0).sum(1) - 1, next_token=token)
