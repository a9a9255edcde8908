"""BestFirst: the tree whose paths the draft itself believes in most."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.growth import Growth
from draftwood.core.law import top
from draftwood.core.limit import Limit
from draftwood.core.proposal import Draw, Laws, Proposal
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.errors import need_at_least
from draftwood.trees.grow import best_of


@dataclass(frozen=True, slots=True, eq=False)
class _Carry:
    score: Float[Tensor, "B F"]  # of the frontier nodes
    best: Float[Tensor, "B nodes"]  # the best scores stored so far, in falling order; -inf where there are fewer
    floor: Float[Tensor, "B 1"]  # the row's last place in `best`: nothing new at or below it is ever selected
    last: Int[Tensor, "B 1"]  # that place


@dataclass(frozen=True, slots=True)
class BestFirst:
    """Expand, then rank again: every frontier node gets its `beam` most probable children, the `beam` best of them all are
    the next frontier, and in the end the best `limit.nodes` of everything stored are kept.

        score(child) = score(parent) + log q(child | path)

    Scores only fall along a path, so what does not beat the row's current `nodes`-th best has no future: such children
    are not stored, such nodes not expanded, and growth ends when none is left. The outcome is that of the full search.

    Children are given, never drawn: their scores contain their own tokens, and ranking draws by those would bias.
    """

    beam: int = 10

    def __post_init__(self) -> None:
        need_at_least("BestFirst", beam=(self.beam, 1))

    @property
    def draw(self) -> Draw:
        return Draw.GIVEN

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        growth = Growth.at_roots(base)
        score, nodes = base.tree.score[:, :1], limit.nodes[:, None]
        best = score.new_full((rnd.batch, _budget(limit)), -torch.inf)
        frontier = torch.where(nodes > 0, growth.frontier, -1)
        carry = _Carry(score, best, score - torch.inf, (nodes - 1).clamp_min(0))
        return replace(growth, frontier=frontier, carry=carry)

    def expand(self, growth: Growth, q: Laws, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        carry: _Carry = growth.carry
        tree, budget = growth.tree, _budget(limit)
        k = min(self.beam, budget, q.prob.shape[1])
        prob, columns = top(q.prob, k)
        # A token outside the law's support has score -inf, and so has every child of a node that may have none.
        score = prob.log().to(tree.score.dtype).view(*allowed.shape, k) + carry.score[..., None]
        score = torch.where(allowed[..., None], score, -torch.inf).flatten(1)
        score, order = score.sort(dim=1, descending=True, stable=True)  # ties: the better parent, then the better token
        score, order = score[:, :budget], order[:, :budget]
        tokens = _tokens(columns, q).view(rnd.batch, -1).gather(1, order)
        parents = growth.frontier.gather(1, order // k)
        grown = tree.append(tokens=tokens, parents=parents, live=score > carry.floor, score=score)
        best = torch.cat([carry.best, score], dim=1).topk(budget, dim=1).values
        floor = best.gather(1, carry.last)
        ahead = score[:, : self.beam]
        frontier, ahead = _ahead(ahead, ahead > floor, tree.num_nodes)
        return growth.deeper(grown, frontier, _Carry(ahead, best, floor, carry.last))

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return best_of(tree, limit)


def _budget(limit: Limit) -> int:
    return max(limit.tier.nodes - 1, 1)


def _tokens(columns: Int[Tensor, "R k"], q: Laws) -> Int[Tensor, "R k"]:
    if q.ids is None:
        return columns
    return q.ids[columns] if q.ids.ndim == 1 else q.ids.gather(1, columns)


def _ahead(
    score: Float[Tensor, "B F"], goes_on: Bool[Tensor, "B F"], first: int
) -> tuple[Int[Tensor, "B G"], Float[Tensor, "B G"]]:
    """The next frontier and its scores. Those that go on stand first, so on a CPU, where looking is free, the frontier is
    no wider than the widest row."""
    if goes_on.device.type == "cpu":
        width = int(goes_on.any(0).sum())
        score, goes_on = score[:, :width], goes_on[:, :width]
    nodes = torch.arange(first, first + score.shape[1], device=score.device)
    return torch.where(goes_on, nodes, -1), score
