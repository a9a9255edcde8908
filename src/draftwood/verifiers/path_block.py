"""PathBlock: of several independent paths take the one that ranks highest, and judge it by the block rule.

Tokens rank by (p/q, id) at every node, paths by their first difference. The chosen path is no draw from q: it is the largest
of K, whose distribution function is the K-th power of one path's. So with A the mass of paths below the chosen beginning, J
its own and below(x) the draft's mass on lower tokens, its next token has the distribution

    skew(x) = ((A + J (below(x) + q(x)))^K - (A + J below(x))^K) / ((A + J)^K - A^K)

and the block rule is exact with skew in q's place. The target scores all paths, because ranks need p.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import Aligned
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.verifiers.block import chains_apart, judge_chain
from draftwood.verifiers.family import Family
from draftwood.verifiers.onward import Judged, Mask, Nodes, onward


@dataclass(frozen=True, slots=True)
class PathBlock:
    """Exact if each path ends by itself: at a depth fixed beforehand, or because of its own tokens (a distribution of
    zeros). Other paths must not decide it, because `skew` averages over them.

    `counted`: at each node the number of paths through it is used, so the chosen child is the largest of that many draws.
    Exact however the tree grew, as long as growing did not look ahead, and it accepts a few percent less.
    """

    counted: bool = False
    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["PathBlock"].draws
    shapes: frozenset[Shape] = RULES["PathBlock"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        def several(start: Nodes, where: Mask) -> Judged:
            return judge_chain(proposal, target, rnd, start, where, _Chosen(self.counted))

        # The best of one path is that path; copies of it are several.
        judge = chains_apart(proposal, target, rnd, several, (proposal.tree.copies <= 1).all(1))
        return onward(proposal.tree, target, rnd, judge)


@dataclass(slots=True)
class _Chosen:
    """The chosen path, node by node, in float64."""

    counted: bool
    paths: Int[Tensor, "B"] | None = None  # K
    # A and J, divided by A + J: the distribution depends on their ratio alone.
    lower: Float[Tensor, "B"] = field(init=False)
    own: Float[Tensor, "B"] = field(init=False)

    def __call__(self, here: Family, both: Aligned) -> tuple[Int[Tensor, "B"], TokenProbs]:
        if self.paths is None or self.counted:
            self.paths = here.copies.sum(1)
            self.lower, self.own = (torch.full_like(here.node, x, dtype=torch.float64) for x in (0, 1))
        p, q = both.p.prob.double(), both.q.prob.double()
        q = q / q.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
        rank, below = ranked(p, q)
        place = _highest(both.columns, here.copies > 0, rank)
        probs = skew(q, below, self.lower, self.own, self.paths)
        column = both.columns.gather(1, place[:, None])
        lower = self.lower + self.own * below.gather(1, column)[:, 0]
        own = self.own * q.gather(1, column)[:, 0]
        whole = (lower + own).clamp_min(torch.finfo(q.dtype).tiny)
        self.lower, self.own = lower / whole, own / whole
        return place, both.q.using(probs)


def ranked(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> tuple[Int[Tensor, "B V"], Float[Tensor, "B V"]]:
    """Each token's place by (p/q, id), lowest first, and the draft's mass on the tokens below it. One order for both: were
    ties broken differently here and there, the output would be biased."""
    ratio = torch.where(q > 0, p / q, torch.zeros_like(p))
    order = ratio.argsort(dim=1, stable=True)
    place = torch.arange(q.shape[1], device=q.device).expand_as(order)
    mass = q.gather(1, order).cumsum(1)
    mass = torch.nn.functional.pad(mass[:, :-1], (1, 0))
    return torch.empty_like(order).scatter_(1, order, place), torch.empty_like(q).scatter_(1, order, mass)


def _highest(columns: Int[Tensor, "B C"], children: Bool[Tensor, "B C"], rank: Int[Tensor, "B V"]) -> Int[Tensor, "B"]:
    return torch.where(children, rank.gather(1, columns), -1).argmax(1)


def skew(
    q: Float[Tensor, "B V"],
    below: Float[Tensor, "B V"],
    lower: Float[Tensor, "B"],
    own: Float[Tensor, "B"],
    paths: Int[Tensor, "B"],
) -> Float[Tensor, "B V"]:
    """The distribution of the chosen path's next token, without cancellation: a^K - b^K = (a - b) S, and a - b = J q."""
    bottom = lower[:, None] + own[:, None] * below
    probs = q * _powers(bottom + own[:, None] * q, bottom, paths)
    return probs / probs.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)


def _powers(a: Float[Tensor, "B V"], b: Float[Tensor, "B V"], count: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
    """S = a^(K-1) + a^(K-2) b + ... + b^(K-1)"""
    total, power = torch.ones_like(a), b.clone()
    least, most = (int(x) for x in count.aminmax())
    for k in range(1, most):
        more = torch.addcmul(power, total, a)
        total = more if k < least else torch.where((k < count)[:, None], more, total)
        power.mul_(b)
    return total
