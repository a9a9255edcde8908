"""Rejection: keep a drawn token with probability min(1, r/q), otherwise go on with the residual norm((r - q)+).

One drawn child gives the rule of speculative sampling. Several are tried one after another against a shrinking residual:
without replacement in draw order, a rejected token leaving q; iid copies in uniformly random order. Each step keeps
min(r, q) and hands (r - q)+ on, so what comes out has distribution p.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.legality import RULES, Shape
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.verifiers.draws import of, order
from draftwood.verifiers.family import Family
from draftwood.verifiers.pair import pair_at
from draftwood.verifiers.walk import walk


@dataclass(frozen=True, slots=True)
class Rejection:
    """Exact for draws with a distribution; acceptance of one drawn child is 1 - TV(p, q)."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Rejection"].draws
    shapes: frozenset[Shape] = RULES["Rejection"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        return walk(proposal.tree, lambda here, _, alive: try_children(proposal, target, rnd, here, alive))


def try_children(
    proposal: Proposal, target: Scored, rnd: Round, here: Family, alive: Bool[Tensor, "B"]
) -> Int[Tensor, "B"]:
    """The token after each node, in the rows where it is asked: a drawn child's, or one from what the others left."""
    pair = pair_at(proposal, target, here, alive)
    token, count = torch.full_like(here.node, -1), here.copies.sum(1)
    trying = alive & (count > 0)
    r, q = pair.p, pair.q  # [B, W]
    for turn, place in enumerate(order(here.copies, rnd, here.node, alive).unbind(1)):
        if not bool(trying.any()):
            break
        drawn = pair.columns.gather(1, place[:, None])
        keep = rnd.coin("accept", of(here.child, place), ratio(r, q, drawn), trying, turn)
        token = torch.where(keep, of(here.token, place), token)
        trying = trying & ~keep
        if some(trying):
            r = torch.where(trying[:, None], residual(r, q), r)
            if proposal.draw is Draw.DISTINCT:
                q = torch.where(trying[:, None], _without(q, drawn), q)
        trying = trying & (count > turn + 1)
    rest = pair.pick(rnd, here.node, r, alive & (token < 0))
    return torch.where(token < 0, rest, token)


def ratio(r: Float[Tensor, "B V"], q: Float[Tensor, "B V"], token: Int[Tensor, "B 1"]) -> Float[Tensor, "B"]:
    """min(1, r/q) at the drawn token; a token that q cannot have drawn is never kept."""
    top, bottom = r.gather(1, token)[:, 0], q.gather(1, token)[:, 0]
    return torch.where(bottom > 0, (top / bottom).clamp_max(1.0), torch.zeros_like(top))


def residual(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """norm((p - q)+)."""
    gap = (p - q).clamp_min(0)
    total = gap.sum(-1, keepdim=True)
    # Rounding can leave nothing when p and q agree; then p itself is the right distribution.
    return torch.where(total > 0, gap / total, p)


def _without(q: Float[Tensor, "B V"], token: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
    left = q.scatter(1, token, 0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, left)
