"""Rejection: keep a drawn token with probability min(1, r/q), otherwise go on with the residual norm((r - q)+).

One drawn child gives the rule of speculative sampling. Several are tried one after another against a shrinking residual:
without replacement in draw order, a rejected token leaving q; iid copies in uniformly random order. Each step keeps
min(r, q) and hands (r - q)+ on, so what comes out has law p.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.legality import RULES, Shape
from draftwood.core.passes import Needs
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.verifiers.walk import walk


@dataclass(frozen=True, slots=True)
class Rejection:
    """Exact for draws with a law; acceptance of one drawn child is 1 - TV(p, q)."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Rejection"].draws
    shapes: frozenset[Shape] = RULES["Rejection"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        def choose(node: Int[Tensor, "B"], depth: int, alive: Bool[Tensor, "B"]) -> Int[Tensor, "B"]:
            return _choose(proposal, target, rnd, node, alive)

        return walk(proposal.tree, choose)


def _choose(
    proposal: Proposal, target: Scored, rnd: Round, node: Int[Tensor, "B"], alive: Bool[Tensor, "B"]
) -> Int[Tensor, "B"]:
    tree = proposal.tree
    r = target.law(node[:, None])[:, 0]  # [B, V]
    token = torch.full_like(node, -1)
    left = torch.where(tree.children(node), tree.copies, 0)  # [B, N] draws not yet tried
    trying = alive & (left.sum(1) > 0)
    if proposal.q is not None and some(trying):
        rows = proposal.rows().gather(1, node[:, None])[:, 0]
        q = proposal.q.dense(torch.where(trying, rows, -1), r.shape[-1]).to(r.dtype)
        # Merged iid copies come in random order, to the last of them: trying equal ones together would bias the output.
        # Where nothing was merged, the draw order of iid draws is a random order already.
        shuffle = (left > 1).any(1) & (proposal.draw is Draw.IID)
        turn = 0
        while some(trying) and turn < int(tree.copies.sum(1).max()):
            child = _next(left, shuffle & trying, rnd, node, turn)
            drawn = tree.tokens.gather(1, child[:, None])
            keep = rnd.coin("accept", child, _ratio(r, q, drawn), trying, turn)
            token = torch.where(keep, drawn[:, 0], token)
            rejected = trying & ~keep
            r = torch.where(rejected[:, None], residual(r, q), r)
            if proposal.draw is Draw.DISTINCT:
                q = torch.where(rejected[:, None], _without(q, drawn), q)
            left = left.scatter_add(1, child[:, None], torch.full_like(child, -1)[:, None])
            trying = rejected & (left.sum(1) > 0)
            turn += 1
    rest = rnd.pick("residual", node, r, alive & (token < 0))
    return torch.where(token < 0, rest, token)


def _next(
    left: Int[Tensor, "B N"], shuffle: Bool[Tensor, "B"], rnd: Round, node: Int[Tensor, "B"], turn: int
) -> Int[Tensor, "B"]:
    """The draw to try next: in draw order, or where `shuffle` is set any of those left, equally likely."""
    first = (left > 0).int().argmax(1)
    if not some(shuffle):
        return first
    return torch.where(shuffle, rnd.pick("order", node, left.to(torch.float64), shuffle, turn), first)


def _ratio(r: Float[Tensor, "B V"], q: Float[Tensor, "B V"], token: Int[Tensor, "B 1"]) -> Float[Tensor, "B"]:
    """min(1, r/q) at the drawn token; a token that q cannot have drawn is never kept."""
    top, bottom = r.gather(1, token)[:, 0], q.gather(1, token)[:, 0]
    return torch.where(bottom > 0, (top / bottom).clamp_max(1.0), torch.zeros_like(top))


def residual(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """norm((p - q)+)."""
    gap = (p - q).clamp_min(0)
    total = gap.sum(-1, keepdim=True)
    # Rounding can leave nothing when p and q agree; then p itself is the right law.
    return torch.where(total > 0, gap / total, p)


def _without(q: Float[Tensor, "B V"], token: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
    left = q.scatter(1, token, 0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, left)
