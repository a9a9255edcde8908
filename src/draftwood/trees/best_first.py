"""BestFirst: the tree of the paths that the draft gives the highest probability."""

import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.host import host, put
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.sampling.truncation import top
from draftwood.core.tree import TokenTree
from draftwood.errors import need_at_least
from draftwood.trees.by_level import ByLevel
from draftwood.trees.grow import best_of
from draftwood.trees.spread import tokens_at

_FEW = 100  # candidates of a level that lists take faster than tensors
WIDE = 10  # beam of a tree that may choose its own, as published


@dataclass(frozen=True, slots=True, eq=False)
class _Carry:
    score: Float[Tensor, "B F"]  # of the frontier nodes
    floor: float | Float[Tensor, "B 1"] = -math.inf  # nothing new at or below it is ever selected
    # The best scores stored so far, in falling order; -inf where there are fewer. None: nothing is pruned, as on an
    # accelerator, where all levels are run in any case.
    best: Float[Tensor, "B nodes"] | None = None
    last: Int[Tensor, "B 1"] | None = None  # the place of `floor` in `best`

    def after(self, score: Float[Tensor, "B M"], beam: int) -> "tuple[_Carry, Bool[Tensor, 'B G']]":
        """With the scores of another level, in falling order; also which of its best nodes go on."""
        if self.best is None or self.last is None:
            return _Carry(score[:, :beam]), score[:, :beam] > self.floor
        budget = self.best.shape[1]
        best = torch.cat([self.best, score], dim=1).topk(budget, dim=1).values
        floor = best.gather(1, self.last)
        goes_on = score[:, :beam] > floor
        width = int(goes_on.any(0).sum())  # those that go on stand first: no wider than the widest sequence needs
        return _Carry(score[:, :width], floor, best, self.last), goes_on[:, :width]


@dataclass(frozen=True, slots=True, eq=False)
class _Lists:
    """The whole growth of a few sequences on a CPU: lists take it faster than thirty tensor operations a level."""

    nodes: list[list[tuple[float, int, int]]]  # score, parent, token; score -inf pads
    score: list[list[float]]  # of the frontier nodes
    best: list[list[float]]  # as above, without the places that nothing fills
    last: list[int]

    def floor(self, b: int) -> float:
        best, last = self.best[b], self.last[b]
        return best[last] if last < len(best) else -math.inf

    def tree(self, base: TokenTree) -> TokenTree:
        """Given nodes, of source 0, below bare roots."""
        parents, tokens = ([[n[i] for n in each] for each in self.nodes] for i in (1, 2))
        none = [[0] * len(each) for each in tokens]
        source = [[-1, *each[1:]] for each in none]
        score = put([[n[0] for n in each] for each in self.nodes], base.tokens.device, base.score.dtype)
        whole = put([tokens, parents, none, none, source], base.tokens.device).unbind(0)
        names = ("tokens", "parents", "role", "copies", "source")
        return TokenTree(live=score > -torch.inf, score=score, **dict(zip(names, whole, strict=True)))


@dataclass(frozen=True, slots=True)
class BestFirst(ByLevel):
    """Expand, then rank again: every frontier node gets its `beam` most probable children, the `beam` best of them all are
    the next frontier, and in the end the best `limit.nodes` of everything stored are kept.

        score(child) = score(parent) + log q(child | path)

    Scores only fall along a path, so what does not beat a sequence's current `nodes`-th best has no future: such children
    are not stored, such nodes not expanded, and growth ends when none is left. The outcome is that of the full search.

    Children are given, never drawn: their scores contain their own tokens, and ranking draws by those would bias.

    `beam` None follows the limit: a chain where there are no more nodes than levels, else a beam of WIDE. `children`: of
    every frontier node, None: as many as the beam. With a beam of 1 the others are leaves beside the chain.
    """

    beam: int | None = None
    children: int | None = None

    def __post_init__(self) -> None:
        for name in ("beam", "children"):
            if getattr(self, name) is not None:
                need_at_least("BestFirst", **{name: (getattr(self, name), 1)})

    @property
    def draw(self) -> Draw:
        return Draw.GIVEN

    @property
    def shape(self) -> Shape:
        return Shape.CHAIN if self.beam == 1 and self.children in (None, 1) else Shape.TREE

    def reads(self, limit: Limit) -> int:
        """Columns of a distribution that matter, the best ones: a drafter need not hand over more. 1 is a chain."""
        return min(self._beam(limit) if self.children is None else self.children, _budget(limit))

    def max_frontier(self, limit: Limit) -> int:
        return self._beam(limit)

    def _beam(self, limit: Limit) -> int:
        if self.beam is not None:
            return self.beam
        return 1 if limit.tier.nodes - 1 <= limit.tier.depth else WIDE

    def max_children(self, limit: Limit) -> int:
        return self.reads(limit)

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        growth = Growth.at_roots(base)
        few = rnd.batch * self._beam(limit) * self.reads(limit) <= _FEW and base.tree.num_nodes == 1
        if few and hosts.on_host(rnd.device):
            nodes, score = limit.budgets, host(base.tree.score)
            roots = [[(s, -1, token)] for (s,), (token,) in zip(score, host(base.tree.tokens), strict=True)]
            lists = _Lists(roots, score, [[] for _ in nodes], [max(n - 1, 0) for n in nodes])
            return replace(growth, frontier=put([[0 if n > 0 else -1] for n in nodes], rnd.device), carry=lists)
        score, nodes = base.tree.score[:, :1], limit.nodes[:, None]
        frontier = torch.where(nodes > 0, growth.frontier, -1)
        if not hosts.on_host(rnd.device):
            return replace(growth, frontier=frontier, carry=_Carry(score))
        best = score.new_full((rnd.batch, _budget(limit)), -torch.inf)
        carry = _Carry(score, score - torch.inf, best, (nodes - 1).clamp_min(0))
        return replace(growth, frontier=frontier, carry=carry)

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        budget = _budget(limit)
        k = min(self.reads(limit), q.prob.shape[1])
        prob, tokens = q.prob, q.ids
        if k < q.prob.shape[1] or tokens is None or tokens.ndim == 1:
            prob, columns = top(q.prob, k)
            tokens = tokens_at(q, columns)
        if isinstance(growth.carry, _Lists):
            return self._expand_few(growth, host(prob.log()), host(tokens), host(allowed), limit)
        carry: _Carry = growth.carry
        tree = growth.tree
        # A token outside the distribution's support has score -inf, and so has every child of a node that may have none.
        score = prob.log().to(tree.score.dtype).view(*allowed.shape, k) + carry.score[..., None]
        score = torch.where(allowed[..., None], score, -torch.inf).flatten(1)
        score, order = score.sort(dim=1, descending=True, stable=True)  # ties: the better parent, then the better token
        score, order = score[:, :budget], order[:, :budget]
        tokens = tokens.view(rnd.batch, -1).gather(1, order)
        parents = growth.frontier.gather(1, order // k)
        grown = tree.append(tokens=tokens, parents=parents, live=score > carry.floor, score=score)
        then, goes_on = carry.after(score, self._beam(limit))
        nodes = torch.arange(tree.num_nodes, tree.num_nodes + goes_on.shape[1], device=score.device)
        return growth.deeper(grown, torch.where(goes_on, nodes, -1), then)

    def _expand_few(
        self, growth: Growth, gain: list[list[float]], tokens: list[list[int]], allowed: list[list[bool]], limit: Limit
    ) -> Growth:
        """`expand` with lists. What could only be stored dead is not stored at all."""
        carry: _Lists = growth.carry
        budget, beam = _budget(limit), self._beam(limit)
        nodes: list[list[tuple[float, int, int]]] = []
        best: list[list[float]] = []
        probs = iter(zip(gain, tokens, strict=True))
        for b, (frontier, scores) in enumerate(zip(host(growth.frontier), carry.score, strict=True)):
            floor = carry.floor(b)
            found = [
                (above + more, node, token)
                for node, above, may, (gains, words) in zip(frontier, scores, allowed[b], probs, strict=False)
                if may
                for more, token in zip(gains, words, strict=True)
                if above + more > floor
            ]
            found.sort(key=itemgetter(0), reverse=True)  # ties: the better parent, then the better token
            nodes.append(found[:budget])
            best.append(sorted([*carry.best[b], *(score for score, _, _ in nodes[b])], reverse=True)[:budget])
        first = growth.tree.num_nodes
        grown = [old + new for old, new in zip(carry.nodes, _even(nodes, (-math.inf, 0, 0)), strict=True)]
        then = _Lists(grown, [], best, carry.last)
        ahead = [[s for s, _, _ in each[:beam] if s > then.floor(b)] for b, each in enumerate(nodes)]
        then.score.extend(_even(ahead, -math.inf))
        deeper = put(_even([[*range(first, first + len(each))] for each in ahead], -1), growth.frontier.device)
        return growth.deeper(then.tree(growth.tree) if any(nodes) else growth.tree, deeper, then)

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return best_of(tree, limit)


def _budget(limit: Limit) -> int:
    return max(limit.tier.nodes - 1, 1)


def _even(lists: list[list[Any]], fill: Any) -> list[list[Any]]:
    """All as long as the longest."""
    longest = max(map(len, lists))
    return [each + [fill] * (longest - len(each)) for each in lists]
