"""MostValuableFirst: one draw at a time, always the one that is most likely to be of use.

A draw that has not happened yet is worth the chance that it will be tried: that its node is reached and that its elder
siblings are all rejected, if a token is kept with its draft probability.

    value(next child of n) = q(path to n) * (1 - q of n's children so far)

The value is known before the token, so a budget may depend on it: what does not fit are draws, never tokens. A greedy
sequence draws nothing, and its next child is known to be the best token left: it is worth that token's probability.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import need_at_least
from draftwood.trees.grow import by_score
from draftwood.trees.place import place
from draftwood.trees.spread import joined, tokens_at, with_distributions


@dataclass(frozen=True, slots=True, eq=False)
class _Carry:
    """Of every node of the tree so far."""

    value: Float[Tensor, "B N"]  # of its next draw; 0: there is none
    reach: Float[Tensor, "B N"]  # product of the draft's probabilities on the way to it
    column: Int[Tensor, "B N"]  # where its token stands in its parent's distribution
    depth: Int[Tensor, "B N"]


@dataclass(frozen=True, slots=True)
class MostValuableFirst:
    """A heap of draws, the most valuable first, until the budget is used. A distribution takes a draft pass, a further
    child of the same node does not. `ahead`: nodes run in one pass, the most valuable ones; it changes the number of passes
    and nothing else."""

    ahead: int = 1

    def __post_init__(self) -> None:
        need_at_least("MostValuableFirst", ahead=(self.ahead, 1))

    @property
    def draw(self) -> Draw:
        return Draw.DISTINCT

    @property
    def shape(self) -> Shape:
        return Shape.TREE

    def passes(self, limit: Limit) -> int:
        """Every pass is followed by a draw at least."""
        return limit.tier.nodes - 1

    def reads(self, limit: Limit) -> int | None:
        return None

    def max_frontier(self, limit: Limit) -> int | None:
        return None

    def max_children(self, limit: Limit) -> int:
        return limit.tier.nodes - 1

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        growth = Growth.at_roots(base)
        one = torch.ones_like(growth.frontier, dtype=torch.float64)
        none = torch.zeros_like(growth.frontier)
        frontier = torch.where((limit.nodes > 0)[:, None], growth.frontier, -1)
        return replace(growth, frontier=frontier, carry=_Carry(one, one, none, none), level=None)

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        at = growth.frontier.clamp_min(0)
        old: _Carry = growth.carry
        closed = (growth.frontier >= 0) & ~allowed
        value = old.value.scatter(1, at, torch.where(closed, 0.0, old.value.gather(1, at)))
        if rnd.sampler.any_greedy:
            best = old.reach.gather(1, at) * q.prob.view(*at.shape, -1).amax(-1)
            worth = torch.where(allowed & rnd.sampler.greedy()[:, None], best, torch.inf)
            value = torch.minimum(value, torch.full_like(value, torch.inf).scatter(1, at, worth))
        growth = with_distributions(replace(growth, carry=replace(old, value=value)), q, allowed)
        whole = joined(growth.q)
        growth = replace(growth, q=() if whole is None else (whole,))
        while True:
            node, ready = _top(growth, limit)
            on_host = host.on_host(rnd.device)
            if on_host and not bool(ready.any()):  # nothing can be drawn before another pass
                break
            growth = _pop(growth, node, ready, limit, rnd)
            if not on_host:  # one draw a pass: there are as many passes as draws, and a draw that is not ready waits
                break
        return replace(growth, frontier=self._waiting(growth, limit))

    def _waiting(self, growth: Growth, limit: Limit) -> Int[Tensor, "B F"]:
        """The next nodes to run: of the draws that the budget has room for, those whose distribution is not known yet."""
        carry: _Carry = growth.carry
        width = min(self.ahead, carry.value.shape[1])
        # Stable, so that of equals the older one is drawn first here as in `_top`.
        value, node = (x[:, :width] for x in carry.value.sort(dim=1, descending=True, stable=True))
        room = limit.nodes - growth.tree.num_drafted()
        fits = torch.arange(width, device=node.device) < room[:, None]
        unknown = growth.q_index.gather(1, node) < 0
        return torch.where(fits & unknown & (value > 0), node, -1)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return by_score(tree, limit)


def _top(growth: Growth, limit: Limit) -> tuple[Int[Tensor, "B"], Bool[Tensor, "B"]]:
    """The node of each sequence's most valuable draw, the oldest among equals, and whether it can happen now."""
    value, node = growth.carry.value.max(dim=1)
    known = growth.q_index.gather(1, node[:, None])[:, 0] >= 0
    return node, known & (value > 0) & (growth.tree.num_drafted() < limit.nodes)


def _pop(growth: Growth, node: Int[Tensor, "B"], ready: Bool[Tensor, "B"], limit: Limit, rnd: Round) -> Growth:
    """One more child of `node` in the ready sequences, and the values of the two draws that it makes possible."""
    carry, tree, (q,), at = growth.carry, growth.tree, growth.q, node[:, None]
    index = growth.q_index.gather(1, at)[:, 0].clamp_min(0)
    elder = tree.live & (tree.parents == at)
    probs = _without(q.prob[index].double(), torch.where(elder, carry.column, -1))  # [B, W]
    new = tree.num_drafted()[:, None] + 1
    column = rnd.sample(new[:, 0], probs, ready)[:, None]
    drew = column >= 0
    value, reach, depth = (x.gather(1, at) for x in (carry.value, carry.reach, carry.depth))
    own = reach * probs.gather(1, column.clamp_min(0))
    others = _without(probs, column)
    left = reach * others.sum(1, keepdim=True)
    if rnd.sampler.any_greedy:
        left = torch.where(rnd.sampler.greedy()[:, None], reach * others.amax(1, keepdim=True), left)
    # Never above the draw they follow, whatever the rounding of a distribution's sum: scores must not grow along a path.
    further = torch.where(drew, torch.minimum(left, value), 0.0)
    deeper = torch.where(depth + 1 < limit.depth[:, None], torch.minimum(own, value), 0.0)
    values = carry.value.scatter(1, at, torch.where(ready[:, None], further, value))
    grown = place(tree, new, drew, parents=at, tokens=tokens_at(q, column, index[:, None]), score=value.log())
    carry = _Carry(
        _set(values, new, drew, deeper, grown.num_nodes),
        _set(carry.reach, new, drew, own, grown.num_nodes),
        _set(carry.column, new, drew, column, grown.num_nodes),
        _set(carry.depth, new, drew, depth + 1, grown.num_nodes),
    )
    q_index = torch.nn.functional.pad(growth.q_index, (0, grown.num_nodes - tree.num_nodes), value=-1)
    return replace(growth, tree=grown, q_index=q_index, carry=carry)


def _set(x: Tensor, at: Int[Tensor, "B 1"], where: Bool[Tensor, "B 1"], new: Tensor, width: int) -> Tensor:
    """One entry per sequence written where `where` says so, in `width` columns."""
    spare = torch.nn.functional.pad(x, (0, width + 1 - x.shape[1]))
    return spare.scatter(1, torch.where(where, at, width), new)[:, :width]


def _without(probs: Float[Tensor, "B W"], columns: Int[Tensor, "B M"]) -> Float[Tensor, "B W"]:
    """The distribution with nothing at these columns; -1 names none."""
    width = probs.shape[1]
    spare = torch.nn.functional.pad(probs, (0, 1))
    return spare.scatter(1, torch.where(columns >= 0, columns, width), 0.0)[:, :width]
