"""Transport: k independent draws, each kept with probability min(1, p/(rho q)), then one residual for all of them.

With m = min(p/rho, q) and beta = sum m, one trial keeps x with probability m(x), and k trials keep it with probability
m(x) a/beta, where a = 1 - (1 - beta)^k. The residual adds p - m a/beta, so what comes out has law p, as long as that is
nowhere negative: as long as a <= rho beta. The smallest such rho keeps most; it lies between 1 and k.

p and q are read once per node, not once per draw.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.legality import RULES, Shape
from draftwood.core.passes import Needs
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.errors import OptionError
from draftwood.verifiers.draws import next_draw, taken, untried
from draftwood.verifiers.pair import pair_at
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

        def choose(node: Int[Tensor, "B"], depth: int, alive: Bool[Tensor, "B"]) -> Int[Tensor, "B"]:
            return _choose(proposal, target, rnd, node, alive, least)

        return walk(proposal.tree, choose)


def _choose(
    proposal: Proposal, target: Scored, rnd: Round, node: Int[Tensor, "B"], alive: Bool[Tensor, "B"], least: float
) -> Int[Tensor, "B"]:
    tree = proposal.tree
    token = torch.full_like(node, -1)
    left = untried(proposal, node)
    count = left.sum(1)
    trying = alive & (count > 0)
    pair = pair_at(proposal, target, node, alive)
    p, q = pair.p, pair.q  # [B, W]
    rest = p
    if proposal.q is not None and some(trying):
        rho = best_rho(p, q, count).clamp_min(least).to(p.dtype)
        shuffle = (left > 1).any(1)
        turn = 0
        while some(trying) and turn < int(tree.copies.sum(1).max()):
            child = next_draw(left, shuffle & trying, rnd, node, turn)
            keep = rnd.coin("accept", child, _kept(p, q, rho, pair.column(child)), trying, turn)
            token = torch.where(keep, tree.tokens.gather(1, child[:, None])[:, 0], token)
            left = taken(left, child)
            trying = trying & ~keep & (left.sum(1) > 0)
            turn += 1
        rest = torch.where((count > 0)[:, None], _rest(p, q, rho, count), p)
    after = pair.pick(rnd, node, rest, alive & (token < 0))
    return torch.where(token < 0, after, token)


def best_rho(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], count: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """The root of a(rho) = rho beta(rho) in [1, k], from above: a hair too great is exact, a hair too small is not.

    By false position, every step one pass over the laws; what is returned was tried and is great enough.
    """
    high = count.clamp_min(1).to(torch.float64)
    low = torch.ones_like(high)
    if not some(count > 1):
        return high
    above, below = _excess(p, q, high, count), _excess(p, q, low, count)
    high = torch.where(below >= 0, low, high)
    side, spare = torch.zeros_like(count), above
    for _ in range(_STEPS):
        wide = (high - low > _HAIR * high) & (spare > _HAIR)
        if not some(wide):
            break
        chord = (below / (below - above)).clamp(0.0, 1.0).nan_to_num(0.5)
        middle = torch.minimum(low + (high - low) * chord + _HAIR / 2 * high, high)
        excess = _excess(p, q, middle, count)
        up, down = wide & (excess >= 0), wide & (excess < 0)
        # An end that has stayed for two steps counts half, so that it gets its turn (the Illinois rule).
        above = torch.where(up, excess, torch.where(down & (side < 0), above / 2, above))
        below = torch.where(down, excess, torch.where(up & (side > 0), below / 2, below))
        spare = torch.where(up, excess, spare)
        high, low = torch.where(up, middle, high), torch.where(down, middle, low)
        side = up.long() - down.long()
    return high


def _excess(
    p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], rho: Float[Tensor, "B"], count: Int[Tensor, "B"]
) -> Float[Tensor, "B"]:
    """rho beta - a: not negative where rho is exact."""
    beta = _overlap(p, q, rho.to(p.dtype)).sum(-1, dtype=torch.float64)
    return rho * beta - _reached(beta, count)


def _overlap(p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], rho: Float[Tensor, "B"]) -> Float[Tensor, "B V"]:
    """m = min(p/rho, q)."""
    return torch.minimum(p / rho[:, None], q)


def _reached(beta: Float[Tensor, "B"], count: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    """1 - (1 - beta)^k, without losing small betas."""
    return -torch.expm1(count * torch.log1p(-beta.clamp_max(1.0)))


def _kept(
    p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], rho: Float[Tensor, "B"], token: Int[Tensor, "B 1"]
) -> Float[Tensor, "B"]:
    """min(1, p/(rho q)) at the drawn token; a token that q cannot have drawn is never kept."""
    top, bottom = p.gather(1, token)[:, 0] / rho, q.gather(1, token)[:, 0]
    return torch.where(bottom > 0, (top / bottom).clamp_max(1.0), torch.zeros_like(top))


def _rest(
    p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], rho: Float[Tensor, "B"], count: Int[Tensor, "B"]
) -> Float[Tensor, "B V"]:
    """p less what k trials keep, not normalised."""
    m = _overlap(p, q, rho)
    beta = m.sum(-1, dtype=torch.float64)
    share = torch.where(beta > 0, _reached(beta, count) / beta, torch.zeros_like(beta))
    gap = (p - m * share[:, None].to(p.dtype)).clamp_min(0)
    # Rounding can leave nothing when p and q agree; then p itself is the right law.
    return torch.where(gap.sum(-1, keepdim=True) > 0, gap, p)
