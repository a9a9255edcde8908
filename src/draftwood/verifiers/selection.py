"""Selection: k independent draws play a tournament, and rejection judges the winner under the winner's distribution.

Two draws x ~ r and y ~ q meet: tokens are ranked by p - r q, and the better ranked one goes on. So a token wins against
itself and against all that rank below it,

    won(i) = r(i) q(i) + r(i) below_q(i) + below_r(i) q(i),

one sort and two cumulative sums; of two that rank alike the first goes on. The last winner has a known distribution. It is
accepted with probability min(1, p/won), else the token comes from norm((p - won)+): together p, whatever the ranking. With
the solver "lp" the pairs among the best ranked tokens are decided by coins, whose chances a small linear programme finds.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

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
from draftwood.errors import OptionError, need_at_least
from draftwood.verifiers.family import Family
from draftwood.verifiers.formulas.draws import of, order
from draftwood.verifiers.node_probs import node_probs
from draftwood.verifiers.rejection import ratio
from draftwood.verifiers.selection_lp import best_chances
from draftwood.verifiers.walk import walk

_SORTED, _STABLE = 4096, 256  # columns that a meeting ranks one by one; so few that equal ones keep their order


@dataclass(frozen=True, slots=True)
class Selection:
    """Exact for independent draws. `solver`: "rank" on the device, or "lp" on the host, which decides the pairs among the
    `size` best ranked tokens better and is far slower."""

    solver: Literal["rank", "lp"] = "rank"
    size: int = 5
    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Selection"].draws
    shapes: frozenset[Shape] = RULES["Selection"].shapes

    def __post_init__(self) -> None:
        need_at_least("Selection", size=(self.size, 2))
        if self.solver not in ("rank", "lp"):
            raise OptionError(f"Selection: solver cannot be {self.solver!r}\nhint: 'rank' or 'lp'")
        if self.solver == "lp" and find_spec("scipy") is None:
            raise OptionError(
                "Selection: solver 'lp' needs scipy, which is missing\nhint: pip install scipy, or 'rank'"
            )

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        size = self.size if self.solver == "lp" else 0
        return walk(proposal.tree, lambda here, _, alive: _choose(proposal, target, rnd, here, alive, size))


def _choose(
    proposal: Proposal, target: Scored, rnd: Round, here: Family, alive: Bool[Tensor, "B"], size: int
) -> Int[Tensor, "B"]:
    found = node_probs(proposal, target, here, alive)
    token, count = torch.full_like(here.node, -1), here.copies.sum(1)
    drawn, rest = alive & (count > 0), found.p
    draws = order(here.copies, rnd, here.node, drawn).unbind(1)
    if draws and some(drawn):
        # The winner's distribution is made of sums over all columns: float64, and q with a sum of exactly one, because its
        # rounding would enter every meeting.
        p, q = found.p.prob.double(), found.q.prob.double()
        q = q / q.sum(-1, keepdim=True).clamp_min(1e-300)
        winner, won = draws[0], q
        for turn, other in enumerate(draws[1:], 1):
            playing = drawn & (count > turn)
            if not bool(playing.any()):
                break
            both = [found.columns.gather(1, place[:, None]) for place in (winner, other)]
            everyone = on_host(p.device) and bool(playing.all())  # there it costs nothing to read the mask
            if on_host(p.device) and not everyone:
                some_play = playing.nonzero()[:, 0]
                contest = play(*(x[some_play] for x in (p, won, q)), size, playing[some_play])
                chances = contest.chance(*(x[some_play] for x in both))
                chance = p.new_ones(len(p)).index_copy_(0, some_play, chances)
                won = won.index_copy(0, some_play, contest.won)
            else:
                contest = play(p, won, q, size, playing)
                chance = contest.chance(*both)
                won = contest.won if everyone else torch.where(playing[:, None], contest.won, won)
            # A ranking alone leaves nothing to chance.
            stays = rnd.coin("select", here.node, chance, playing, turn) if size else chance > 0
            winner = torch.where(playing & ~stays, other, winner)
        column = found.columns.gather(1, winner[:, None])
        kept = ratio(p.gather(1, column)[:, 0], won.gather(1, column)[:, 0])
        token = torch.where(rnd.coin("accept", here.node, kept, drawn), of(here.token, winner), token)
        if some(alive & (token < 0)):
            rest = rest.using(p)
            rest = rest.put(rest.residual(rest.using(won)), drawn)
    after = rnd.pick("residual", here.node, rest, alive & (token < 0))
    return torch.where(token < 0, after, token)


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """One meeting of a winner so far, of distribution r, with the next draw, of distribution q."""

    rank: Int[Tensor, "B V"]  # 0 is the best
    chances: Float[Tensor, "B s s"]  # of the first of a pair by their ranks, where both are below s
    stands: Bool[Tensor, "B"]  # playing would not help: the first goes on
    won: Float[Tensor, "B V"]  # the distribution of the token that goes on

    def chance(self, first: Int[Tensor, "B 1"], second: Int[Tensor, "B 1"]) -> Float[Tensor, "B"]:
        """That the first goes on."""
        one, two = self.rank.gather(1, first)[:, 0], self.rank.gather(1, second)[:, 0]
        size = self.chances.shape[1]
        if not size:
            return (self.stands | (one <= two)).to(self.won.dtype)
        each = torch.arange(len(one), device=one.device)
        inside = self.chances[each, one.clamp_max(size - 1), two.clamp_max(size - 1)]
        chance = torch.where((one < size) & (two < size), inside, (one <= two).to(inside.dtype))
        return torch.where(self.stands, 1.0, chance)


def play(
    p: Float[Tensor, "B V"], r: Float[Tensor, "B V"], q: Float[Tensor, "B V"], size: int, where: Bool[Tensor, "B"]
) -> Contest:
    """LearnedStop by the distributions alone; the tokens are not looked at."""
    order = _best_first(p - r * q)  # [B, s] the others rank behind these, all alike
    ranked = order.shape[1]
    rank = torch.full_like(p, ranked, dtype=torch.int64)
    rank = rank.scatter_(1, order, torch.arange(ranked, device=p.device).expand_as(order))
    both, twice = torch.stack([r, q]), order.expand(2, -1, -1)
    best = both.gather(2, twice)
    below = best.flip(-1).cumsum(-1).flip(-1) - best
    won = torch.zeros_like(r)
    if ranked < p.shape[1]:
        # Of two that rank alike the first goes on: r(i) times the others' q, and nothing for the second.
        others = both.scatter(2, twice, 0.0).sum(-1, keepdim=True)
        below, won = below + others, r * others[1]
    (best_r, best_q), (below_r, below_q) = best, below
    won_best = best_r * (best_q + below_q) + below_r * best_q
    size = min(size, p.shape[-1])
    chances = p.new_zeros(len(p), size, size)
    if size:
        first, second = best_r[:, :size], best_q[:, :size]
        lower_r, lower_q = below_r[:, size - 1], below_q[:, size - 1]
        chances = best_chances(p.gather(1, order[:, :size]), first, second, lower_r, lower_q, where)
        won_best = torch.cat([_among(chances, first, second, lower_r, lower_q), won_best[:, size:]], dim=1)
    won = won.scatter_(1, order, won_best)
    # Where a ranking would not raise the mass shared with p, the meeting is not played.
    stands = torch.minimum(p, won).sum(-1) <= torch.minimum(p, r).sum(-1)
    return Contest(rank, chances, stands, torch.where(stands[:, None], r, won))


def _best_first(score: Float[Tensor, "B V"]) -> Int[Tensor, "B s"]:
    """Columns with the highest scores in falling order. Any order is exact; what ranks behind the best thousands hardly
    ever wins, and to sort a whole vocabulary takes longer than everything else."""
    if _STABLE < score.shape[-1] <= _SORTED and on_host(score.device):
        return torch.from_numpy(np.argsort(-score.numpy(), axis=1))  # pyright: ignore  # a fifth of the time
    if score.shape[-1] <= _SORTED:
        return score.sort(dim=-1, descending=True, stable=True).indices
    return score.topk(_SORTED, dim=-1).indices


def _among(
    chances: Float[Tensor, "B s s"],
    r: Float[Tensor, "B s"],
    q: Float[Tensor, "B s"],
    below_r: Float[Tensor, "B"],
    below_q: Float[Tensor, "B"],
) -> Float[Tensor, "B s"]:
    """The winner's distribution among the best ranked: all lower ones lose, each other they meet by these very chances."""
    pair = r[:, :, None] * q[:, None, :]  # [B, s, s] the first is i, the second j
    meet = (pair * chances).sum(2) + (pair * (1 - chances)).sum(1)  # a pair of equals counts once: chance 1 of itself
    return meet + r * below_q[:, None] + below_r[:, None] * q
