"""Threshold: every draw that is likely enough to be of use, level by level.

The values are those of `MostValuableFirst`; instead of asking for the best draw each time, a node draws children while the
next one is worth more than `least`. A pass per level is enough.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round, some
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import by_score
from draftwood.trees.place import place
from draftwood.trees.spread import tokens_at, with_distributions


@dataclass(frozen=True, slots=True, eq=False)
class _Carry:
    reach: Float[Tensor, "B F"]  # product of the draft's probabilities on the way to each frontier node
    best: Float[Tensor, "B nodes"]  # the highest values drawn so far, falling; 0 where there are fewer


@dataclass(frozen=True, slots=True)
class Threshold(ByLevel):
    """Draws worth more than `least`, and of them the most valuable where the budget has not room for all: a draw at or below
    the last one that fits is not made. A draw's value is known before its token, so nothing here depends on tokens."""

    least: float = 1 / 64

    def __post_init__(self) -> None:
        if not isinstance(self.least, int | float) or not 0 <= self.least < 1:
            raise OptionError(f"Threshold: least cannot be {self.least!r}\nhint: a probability, about 1 / nodes")

    @property
    def draw(self) -> Draw:
        return Draw.DISTINCT

    @property
    def shape(self) -> Shape:
        return Shape.TREE

    def max_children(self, limit: Limit) -> int:
        return limit.tier.nodes - 1

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        growth = Growth.at_roots(base)
        reach = torch.ones_like(growth.frontier, dtype=torch.float64)
        best = reach.new_zeros(rnd.batch, max(limit.tier.nodes - 1, 1))
        frontier = torch.where((limit.nodes > 0)[:, None], growth.frontier, -1)
        return replace(growth, frontier=frontier, carry=_Carry(reach, best))

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        tree = growth.tree
        drawn = self._draws(growth, q, allowed, limit, rnd)
        live = (drawn.column >= 0).flatten(1)
        at = tree.num_drafted()[:, None] + live.long().cumsum(1)
        parents = growth.frontier[..., None].expand_as(drawn.column).flatten(1)
        tokens = tokens_at(q, drawn.column).flatten(1)
        grown = place(tree, at, live, parents=parents, tokens=tokens, score=drawn.value.log().flatten(1))
        # The first child of a new node is worth what the node is.
        goes_on = live & (drawn.reach.flatten(1) > self._floor(drawn.best, limit))
        # Fewer than the budget are worth more than its last place, so no frontier is wider than that.
        widest = max(int(goes_on.sum(1).max()), 1) if host.on_host(rnd.device) else drawn.best.shape[1]
        order = (~goes_on).long().argsort(dim=1, stable=True)[:, :widest]
        frontier = torch.where(goes_on, at, -1).gather(1, order)
        then = _Carry(drawn.reach.flatten(1).gather(1, order), drawn.best)
        deeper = with_distributions(growth, q, allowed).deeper(grown, frontier, then)
        q_index = torch.nn.functional.pad(deeper.q_index, (0, grown.num_nodes - tree.num_nodes), value=-1)
        return replace(deeper, q_index=q_index)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)

    def _floor(self, best: Float[Tensor, "B nodes"], limit: Limit) -> Float[Tensor, "B 1"]:
        """What a draw must be worth more than."""
        return best.gather(1, (limit.nodes - 1).clamp_min(0)[:, None]).clamp_min(self.least)

    def _draws(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> "_Drawn":
        carry: _Carry = growth.carry
        batch, width = allowed.shape
        left = q.prob.view(batch, width, -1).double()  # [B, F, W] not yet drawn
        columns = left.shape[-1]
        greedy = rnd.sampler.greedy()[:, None]

        def worth(left: Float[Tensor, "B F W"], whole: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
            """Of the next draw: what is left of the distribution; of a greedy sequence the best of it."""
            mass = torch.where(greedy, left.amax(-1), whole) if rnd.sampler.any_greedy else whole
            return carry.reach * mass

        value, best = torch.where(allowed, worth(left, torch.ones_like(carry.reach)), 0.0), carry.best
        drawn: list[Tensor] = []
        values: list[Tensor] = []
        reached: list[Tensor] = []
        for turn in range(max(min(best.shape[1], columns), 1)):
            opens = value > self._floor(best, limit)
            if turn and not some(opens):
                break
            column = rnd.sample(growth.frontier.clamp_min(0), left, opens, turn)
            drew, at = column >= 0, column.clamp_min(0)[..., None]
            drawn.append(column)
            values.append(torch.where(drew, value, 1.0))
            reached.append(torch.where(drew, carry.reach * left.gather(2, at)[..., 0], 0.0))
            best = torch.cat([best, torch.where(drew, value, 0.0)], dim=1).topk(best.shape[1], dim=1).values
            left = torch.where(drew[..., None], left.scatter(2, at, 0.0), left)
            further = torch.minimum(worth(left, left.sum(-1)), value)
            value = torch.where(opens, torch.where(drew, further, 0.0), value)
        return _Drawn(torch.stack(drawn, -1), torch.stack(values, -1), torch.stack(reached, -1), best)


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    column: Int[Tensor, "B F k"]  # of each draw; -1: not drawn
    value: Float[Tensor, "B F k"]
    reach: Float[Tensor, "B F k"]  # of the new node
    best: Float[Tensor, "B nodes"]
