"""Transport: k independent draws, each accepted with probability min(1, p/(rho q)), then one residual for all of them.

With m = min(p/rho, q) and beta = sum m, one trial accepts x with probability m(x), and k trials accept it with probability
m(x) a/beta, where a = 1 - (1 - beta)^k. The residual adds p - m a/beta, so what comes out has distribution p, as long as
that is nowhere negative: as long as a <= rho beta. The smallest such rho accepts most; it lies between 1 and k.

p and q are read once per node, not once per draw.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.host import on_host
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.errors import OptionError
from draftwood.verifiers.family import Family
from draftwood.verifiers.formulas.draws import of, order
from draftwood.verifiers.node_probs import node_probs
from draftwood.verifiers.walk import walk

_HAIR = 1e-8  # how far from the best rho the search may end, as a share of it: far below what acceptance would show
_STEPS = 24  # seven are usual


@dataclass(frozen=True, slots=True)
class Transport:
    """Exact for independent draws. `rho`: "best", or a number that is used wherever the best is smaller; a greater rho keeps
    less and stays exact, a smaller one would not be, so there is none."""

    rho: float | Literal["best"] = "best"
    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Transport"].draws
    shapes: frozenset[Shape] = RULES["Transport"].shapes

    def __post_init__(self) -> None:
        if self.rho != "best" and not (isinstance(self.rho, int | float) and 1 <= self.rho < float("inf")):
            raise OptionError(f"Transport: rho cannot be {self.rho!r}\nhint: 'best', or a number, at least 1")

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        least = 1.0 if self.rho == "best" else float(self.rho)
        return walk(proposal.tree, lambda here, _, alive: _choose(proposal, target, rnd, here, alive, least))


def _choose(
    proposal: Proposal, target: Scored, rnd: Round, here: Family, alive: Bool[Tensor, "B"], least: float
) -> Int[Tensor, "B"]:
    both = node_probs(proposal, target, here, alive)
    p, q = both.p.prob, both.q.prob  # [B, W]
    token, count = torch.full_like(here.node, -1), here.copies.sum(1)
    trying, rest = alive & (count > 0), p
    place = order(here.copies, rnd, here.node, trying)  # [B, n]
    if place.shape[1] and some(trying):
        rho = best_rho(p, q, count).clamp_min(least).to(p.dtype)
        kept = _kept(p, q, rho, both.columns.gather(1, place))
        first = rnd.pick("accept", here.node, _first(kept, count), trying)
        hit = trying & (first < place.shape[1])
        token = torch.where(hit, of(here.token, of(place, first.clamp(0, place.shape[1] - 1))), token)
        if some(alive & (token < 0)):
            rest = torch.where((count > 0)[:, None], _rest(p, q, rho, count), p)
    after = rnd.pick("residual", here.node, both.p.using(rest), alive & (token < 0))
    return torch.where(token < 0, after, token)


def best_rho(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], count: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """The root of a(rho) = rho beta(rho) in [1, k], from above: a hair too great is exact, a hair too small is not."""
    if not some(count > 1):
        return torch.ones_like(count, dtype=torch.float64)
    if on_host(p.device):  # a search is many steps with few numbers, for which numpy takes a third of the time
        with np.errstate(divide="ignore", invalid="ignore"):  # as torch does: log 0 is -inf, and 1 - e^-inf is 1
            return torch.from_numpy(_search(np, *(x.numpy() for x in (p, q, count))))  # pyright: ignore
    return _search(torch, p, q, count)


def _search(xp: Any, p: Any, q: Any, count: Any) -> Any:
    """By false position, every step one pass over the distributions; the result was tried and is large enough. `xp`: numpy
    or torch, which agree about every function used here."""
    high = xp.clip(count, 1, None) * xp.ones_like(count, dtype=xp.float64)
    low = xp.ones_like(high)

    def excess(rho: Any) -> Any:
        """rho beta - a: not negative where rho is exact."""
        beta = xp.sum(_overlap(xp, p, q, rho), -1, dtype=xp.float64)
        return rho * beta - _reached(xp, beta, count)

    above, below = excess(high), excess(low)
    high = xp.where(below >= 0, low, high)
    side, spare = xp.zeros_like(count), above
    for _ in range(_STEPS):
        wide = (high - low > _HAIR * high) & (spare > _HAIR)
        if not bool(wide.any()):
            break
        gap = xp.where(below < above, above - below, 1.0)
        middle = xp.minimum(low + (high - low) * xp.clip(-below / gap, 0.0, 1.0) + _HAIR / 2 * high, high)
        found = excess(middle)
        up, down = wide & (found >= 0), wide & (found < 0)
        # An end that has stayed for two steps counts half, so that it gets its turn (the Illinois rule).
        above = xp.where(up, found, xp.where(down & (side < 0), above / 2, above))
        below = xp.where(down, found, xp.where(up & (side > 0), below / 2, below))
        spare = xp.where(up, found, spare)
        high, low = xp.where(up, middle, high), xp.where(down, middle, low)
        side = xp.where(up, 1, xp.where(down, -1, 0))
    return high


def _overlap(xp: Any, p: Any, q: Any, rho: Any) -> Any:
    """m = min(p/rho, q)."""
    return xp.minimum(p / rho[:, None], q)


def _reached(xp: Any, beta: Any, count: Any) -> Any:
    """1 - (1 - beta)^k, without losing small betas."""
    return -xp.expm1(count * xp.log1p(-xp.clip(beta, None, 1.0)))


def _kept(
    p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], rho: Float[Tensor, "B"], token: Int[Tensor, "B n"]
) -> Float[Tensor, "B n"]:
    """min(1, p/(rho q)) at the drawn tokens; a token that q cannot have drawn is never kept."""
    top, bottom = p.gather(1, token) / rho[:, None], q.gather(1, token)
    return torch.where(bottom > 0, (top / bottom).clamp_max(1.0), torch.zeros_like(top))


def _first(kept: Float[Tensor, "B n"], count: Int[Tensor, "B"]) -> Float[Tensor, "B n+1"]:
    """The distribution of the first trial that accepts its draw, if each does so with these chances; last, that none does.
    Trials are independent, so one pick decides all of them."""
    real = torch.arange(kept.shape[1], device=kept.device) < count[:, None]
    kept = torch.where(real, kept.double(), 0.0)
    left = torch.nn.functional.pad(1 - kept, (1, 0), value=1.0).cumprod(1)
    return torch.cat([kept * left[:, :-1], left[:, -1:]], dim=1)


def _rest(
    p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], rho: Float[Tensor, "B"], count: Int[Tensor, "B"]
) -> Float[Tensor, "B V"]:
    """p less what k trials keep, not normalised."""
    m = _overlap(torch, p, q, rho)
    beta = m.sum(-1, dtype=torch.float64)
    share = torch.where(beta > 0, _reached(torch, beta, count) / beta, torch.zeros_like(beta))
    gap = (p - m * share[:, None].to(p.dtype)).clamp_min(0)
    # Rounding can leave nothing when p and q agree; then p itself is the right distribution.
    return torch.where(gap.sum(-1, keepdim=True) > 0, gap, p)
