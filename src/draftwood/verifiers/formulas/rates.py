"""How often rules accept one of k drafted siblings, by formula: for tables and for tuning, never part of a rule.

Each function takes distributions p (target) and q (draft) and gives the acceptance of every pair of them. What has no
formula (rejection of three or more draws without replacement) is left to the rule itself and a sample.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.verifiers.formulas.bounds import distributions
from draftwood.verifiers.selection import play

HALVINGS = 60  # of an interval of length k: to the last bit


def match_iid(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B"]:
    """Sample the target, check whether it was drawn: sum of p (1 - (1 - q)^k)."""
    p, q = distributions(p, q, k)
    return (p * _drawn(q, k)).sum(1)


def first_iid(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B"]:
    """One draw judged by rejection, the others only met by luck: the residual may be one of them."""
    p, q = distributions(p, q, k)
    return (torch.minimum(p, q) + (p - q).clamp_min(0) * _drawn(q, k - 1)).sum(1)


def rejection_iid(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B"]:
    """One draw after the other against a shrinking residual: 1 - product of (1 - sum of min(r, q))."""
    p, q = distributions(p, q, k)
    r, missed = p, torch.ones_like(p[:, 0])
    for _ in range(k):
        missed = missed * (1 - torch.minimum(r, q).sum(1)).clamp_min(0)
        r = _residual(r, q)
    return 1 - missed


def transport_iid(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B"]:
    """Every draw is kept with min(1, p / (rho q)), rho as small as is exact: where 1 - (1 - beta)^k = rho beta."""
    p, q = distributions(p, q, k)
    low, high = torch.ones_like(p[:, 0]), torch.full_like(p[:, 0], float(k))

    def kept(rho: Tensor) -> tuple[Tensor, Tensor]:
        beta = torch.minimum(p / rho[:, None], q).sum(1).clamp_max(1.0)
        return beta, 1 - (1 - beta) ** k

    for _ in range(HALVINGS if k > 1 else 0):
        middle = (low + high) / 2
        beta, rate = kept(middle)
        exact = rate <= middle * beta
        low, high = torch.where(exact, low, middle), torch.where(exact, middle, high)
    return kept(high)[1]


def selection_iid(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B"]:
    """The winner of the rule's own k - 1 meetings, judged by rejection under its distribution: sum of min(p, won). A
    meeting that would lower that sum is not played, so it never falls with k. A residual that happens to be a losing draw
    is not counted, so the rule keeps a little more than this."""
    p, q = distributions(p, q, k)
    won, everywhere = q, torch.ones_like(p[:, 0], dtype=torch.bool)
    for _ in range(k - 1):
        won = play(p, won, q, 0, everywhere).won
    return torch.minimum(p, won).sum(1)


def match_two_distinct(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> Float[Tensor, "B"]:
    """Sample the target, check whether it is one of two draws without replacement."""
    p, q = distributions(p, q, 2)
    left = _left(q)
    odds = torch.where(left > 0, q / left, 0.0)
    return (p * q * (1 + odds.sum(1, keepdim=True) - odds)).sum(1)


def rejection_two_distinct(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> Float[Tensor, "B"]:
    """Two draws without replacement: sum of min(p, q), and for each token rejected first, (q - p)+, what the second keeps:
    the sum of min(r, q / (1 - q(token))), r the residual. That is a function of one number, so one sort serves all."""
    p, q = distributions(p, q, 2)
    r, left = _residual(p, q), _left(q)
    rejected = torch.where(left > 0, (q - p).clamp_min(0), 0.0)
    scale = torch.where(left > 0, 1 / left, 0.0)
    ratio = torch.where(q > 0, r / q, torch.inf)
    ratio, order = ratio.sort(dim=1)
    r_sum, q_sum = (torch.nn.functional.pad(x.gather(1, order).cumsum(1), (1, 0)) for x in (r, q))
    below = torch.searchsorted(ratio, scale)  # tokens whose r is the smaller of the two
    second = r_sum.gather(1, below) + scale * (q_sum[:, -1:] - q_sum.gather(1, below))
    return torch.minimum(p, q).sum(1) + (rejected * second.clamp_max(1.0)).sum(1)


def greedy(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], k: int) -> Float[Tensor, "B"]:
    """The k - 1 likeliest tokens as given children and one draw from the rest of q, judged by rejection. It is the best any
    rule can do with such a draft."""
    p, q = distributions(p, q, k)
    best = q.topk(min(k - 1, q.shape[1]), dim=1)
    given = torch.zeros_like(q, dtype=torch.bool).scatter(1, best.indices, best.values > 0)
    rest = q.masked_fill(given, 0.0)
    total = rest.sum(1, keepdim=True)
    drawn = torch.where(total > 0, rest / total, 0.0)
    return (p * given).sum(1) + torch.minimum(p, drawn).sum(1)


def _drawn(q: Tensor, k: int) -> Tensor:
    """Probability that a token is among k independent draws."""
    return -torch.expm1(k * torch.log1p(-q.clamp_max(1.0))) if k else torch.zeros_like(q)


def _left(q: Tensor) -> Tensor:
    """What the others have, summed for the likeliest token: 1 - q would lose all digits of it."""
    best = q.argmax(1, keepdim=True)
    others = q.scatter(1, best, 0.0)
    return (1 - others).scatter(1, best, others.sum(1, keepdim=True))


def _residual(r: Tensor, q: Tensor) -> Tensor:
    gap = (r - q).clamp_min(0)
    total = gap.sum(1, keepdim=True)
    return torch.where(total > 0, gap / total, r)
