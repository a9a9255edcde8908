"""Traversal: the block rule for trees, from the leaves to the root.

The first leaf (first-drawn children first) is kept with probability w(leaf), and with it its whole path. A rejected leaf x
leaves its parent n, which settles what is left:

    w(n) <- R / (R + 1 - w(n)),   p_n <- norm((w(n) p_n - q_n)+),   q_n <- norm(q_n without x),   R = sum (w(n) p_n - q_n)+

and the next leaf is tried; the root's weight stays 1, so something is always kept. Equal independent draws are one node:
each further sibling is then a draw from what q has left, given that there is one.

Why it is exact: "the parent is not kept" is one more token, of mass 1 - w(n). The children transport q_n onto (w(n) p_n,
1 - w(n)) as rejection without replacement does, and so on below each child.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from draftwood.core.legality import RULES, Shape
from draftwood.core.passes import Needs
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.support import Support
from draftwood.core.verdict import Verdict
from draftwood.verifiers.block import chains_apart, missing, share, token_after, weight
from draftwood.verifiers.onward import drawn, inner, onward
from draftwood.verifiers.pair import Pair, pair_at


@dataclass(frozen=True, slots=True)
class Traversal:
    """Keeps more than rejection without replacement on the same tree; on a chain it is the block rule."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Traversal"].draws
    shapes: frozenset[Shape] = RULES["Traversal"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        def branched(start: Int[Tensor, "B"], where: Bool[Tensor, "B"]) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
            return _judge(proposal, target, rnd, start, where)

        judge = chains_apart(proposal, target, rnd, branched)

        return onward(proposal.tree, target, rnd, judge)


class _Stack:
    """Laws of the nodes from the start down to the one a row is at. Others need none: below a rejected node nothing is ever
    asked again, and a node not yet visited has its laws unchanged. Made on the way down, for nodes with drawn children."""

    def __init__(self, batch: int, levels: int, columns: Int[Tensor, "B N"]) -> None:
        self.each, self.levels = torch.arange(batch, device=columns.device), levels
        self.columns = columns  # of each node's token in its parent's laws
        self.p: Tensor | None = None  # [B, levels, W]
        self.q: Tensor | None = None
        self.ids: Tensor | None = None
        self.vocab = 0

    def top(self, level: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B W"], Float[Tensor, "B W"]]:
        assert self.p is not None and self.q is not None
        at = level.clamp(0, self.levels - 1)
        return self.p[self.each, at], self.q[self.each, at]

    def left(self, level: Int[Tensor, "B"]) -> Support | None:
        """What is left of p, and of which tokens; None if no law was asked for."""
        if self.p is None:
            return None
        at = level.clamp(0, self.levels - 1)
        return Support(self.p[self.each, at], None if self.ids is None else self.ids[self.each, at], self.vocab)

    def add(self, level: Int[Tensor, "B"], pair: Pair, below: Bool[Tensor, "B N"], where: Bool[Tensor, "B"]) -> None:
        """The laws of a node just reached; the stack gets as wide as the widest so far."""
        ids, width = pair.support.ids, pair.p.shape[1]
        if self.p is None or self.q is None:
            shape = (len(pair.p), self.levels, width)
            # Never read before it is written, and of many levels most are never reached: so it is not filled.
            self.p, self.q, self.vocab = pair.p.new_empty(shape), pair.q.new_empty(shape), pair.support.vocab
            self.ids = None if ids is None else ids.new_full(shape, self.vocab)
        elif self.ids is not None and width > self.p.shape[2]:
            more = (0, max(width, 2 * self.p.shape[2]) - self.p.shape[2])
            self.p, self.q = (torch.nn.functional.pad(x, more) for x in (self.p, self.q))
            self.ids = torch.nn.functional.pad(self.ids, more, value=self.vocab)
        more = (0, self.p.shape[2] - width)
        p, q = (torch.nn.functional.pad(x, more) for x in (pair.p, pair.q))
        self.put(level, p, q, where)
        if self.ids is not None and ids is not None:
            row = where.nonzero()[:, 0]
            self.ids[row, level[row]] = torch.nn.functional.pad(ids, more, value=self.vocab)[row]
            self.columns = torch.where(below & where[:, None], pair.columns, self.columns)

    def put(
        self, level: Int[Tensor, "B"], p: Float[Tensor, "B W"], q: Float[Tensor, "B W"], where: Bool[Tensor, "B"]
    ) -> None:
        assert self.p is not None and self.q is not None
        at = level.clamp(0, self.levels - 1)
        for stack, x in ((self.p, p), (self.q, q)):
            stack[self.each, at] = torch.where(where[:, None], x, stack[self.each, at])


def _judge(
    proposal: Proposal, target: Scored, rnd: Round, start: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """Every row at its own node of its own tree: in one step a row goes down to its node's next child, or tries the node,
    which has none left. A tree of N nodes takes 2N steps at most; on a CPU they end with the last row."""
    tree = proposal.tree
    left, judged = drawn(tree), inner(tree)  # not yet rejected; something was drawn below
    stack = _Stack(tree.batch, max(1, *target.outline.deepest), tree.tokens)
    weights = torch.ones(tree.batch, stack.levels + 1, dtype=torch.float64, device=rnd.device)  # w along the way down
    node, level, alive = start, torch.zeros_like(start), where
    _make(stack, proposal, target, start, level, where & _at(judged, start))
    for _ in range(2 * max(target.outline.drafted) + 1):
        below, w = left & (tree.parents == node[:, None]), _at(weights, level)
        down = alive & below.any(1) & (w > 0)  # below a node that weighs nothing nothing is kept
        alive = alive & ~rnd.coin("accept", node, w, alive & ~down)
        if not some(alive):
            break
        # A rejected node hands back to its parent; a child that weighs nothing is rejected without a visit.
        up = alive & ~down
        child = below.int().argmax(1)
        at, level = torch.where(up, node, child), level - up.long()
        node = torch.where(up, _at(tree.parents, node), node)
        token = torch.where(alive[:, None], stack.columns.gather(1, at[:, None]), 0)  # others may have no column at all
        w, (p, q) = _at(weights, level), stack.top(level)
        heavy = weight(w, p, q, token)
        rejected = up | (down & (heavy <= 0))
        if some(rejected):
            settled, p, q = settle(w, p, q, token)
            stack.put(level, p, q, rejected)
            weights = _set(weights, level, settled, rejected)
            left = _set(left, at, ~rejected, rejected)
        down = down & ~rejected
        level = level + down.long()
        node = torch.where(down, child, node)
        weights = _set(weights, level, heavy, down)
        _make(stack, proposal, target, node, level, down & _at(judged, node))
    return node, token_after(target, rnd, node, where, judged, stack.left(level))


def _make(
    stack: _Stack,
    proposal: Proposal,
    target: Scored,
    node: Int[Tensor, "B"],
    level: Int[Tensor, "B"],
    where: Bool[Tensor, "B"],
) -> None:
    """Laws of the nodes just reached, which plain decoding could have reached too: their weight is not zero."""
    if some(where):
        below = drawn(proposal.tree) & (proposal.tree.parents == node[:, None])
        stack.add(level, pair_at(proposal, target, torch.where(where, node, 0), where), below, where)


def settle(
    w: Float[Tensor, "B"], p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], token: Int[Tensor, "B 1"]
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B V"], Float[Tensor, "B V"]]:
    """What a parent is left with when a child was rejected: weight, law and draft law."""
    rest = missing(w, p, q)
    total = rest.sum(-1, keepdim=True)
    q = q.scatter(1, token, 0.0)
    mass = q.sum(-1, keepdim=True)
    # Nothing is missing where p and q agree, or where nobody needs the parent any more: then p stays as it is.
    p = torch.where(total > 0, rest / total, p)
    return share(total[:, 0].double(), w), p, torch.where(mass > 0, q / mass, q)


def _at(x: Shaped[Tensor, "B N"], column: Int[Tensor, "B"]) -> Shaped[Tensor, "B"]:
    return x.gather(1, column[:, None])[:, 0]


def _set(
    x: Shaped[Tensor, "B N"], column: Int[Tensor, "B"], value: Shaped[Tensor, "B"], where: Bool[Tensor, "B"]
) -> Shaped[Tensor, "B N"]:
    return x.scatter(1, column[:, None], torch.where(where, value, _at(x, column))[:, None])
