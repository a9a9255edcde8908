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

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import Aligned
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.verifiers.block import chains_apart, heaviness, share, token_after
from draftwood.verifiers.family import Families, Family
from draftwood.verifiers.node_probs import node_probs
from draftwood.verifiers.onward import Judged, Mask, Nodes, drawn, inner, onward


@dataclass(frozen=True, slots=True)
class Traversal:
    """Accepts more than rejection without replacement on the same tree; on a chain it is the block rule."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Traversal"].draws
    shapes: frozenset[Shape] = RULES["Traversal"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        def branched(start: Nodes, where: Mask) -> Judged:
            return _judge(proposal, target, rnd, start, where)

        judge = chains_apart(proposal, target, rnd, branched)

        return onward(proposal.tree, target, rnd, judge)


class _Stack:
    """Distributions of the nodes from the start down to the one a sequence is at, made on the way down for nodes with drawn
    children. Others need none: nothing is asked below a rejected node, and a node not yet visited has its distributions
    unchanged."""

    def __init__(self, batch: int, levels: int, columns: Int[Tensor, "B N"]) -> None:
        self.first, self.levels = torch.arange(batch, device=columns.device) * levels, levels
        self.columns = columns  # of each node's token in its parent's distributions
        self.p: Tensor | None = None  # [B * levels, W], the levels of a sequence one after another
        self.q: Tensor | None = None
        self.ids: Tensor | None = None
        self.vocab_size = 0

    def at(self, level: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        return self.first + level.clamp(0, self.levels - 1)

    def of(self, level: Int[Tensor, "B"], column: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"]]:
        """p and q of one token."""
        assert self.p is not None and self.q is not None
        at = self.at(level)
        return self.p[at, column], self.q[at, column]

    def left(self, level: Int[Tensor, "B"]) -> TokenProbs | None:
        """What is left of p; None if no distribution was asked for."""
        if self.p is None:
            return None
        at = self.at(level)
        return TokenProbs(self.p[at], self.vocab_size, None if self.ids is None else self.ids[at])

    def add(self, which: Int[Tensor, "R"], level: Int[Tensor, "B"], both: Aligned, here: Family) -> None:
        """The distributions of a node just reached, in some sequences; the stack gets as wide as the widest so far."""
        p, q, ids, width = both.p.prob, both.q.prob, both.p.ids, both.p.prob.shape[1]
        assert self.p is None or (ids is None) == (self.ids is None), "columns are tokens, or they are not"
        if self.p is None or self.q is None:
            shape = (len(self.first) * self.levels, width)
            # Never read before it is written, and of many levels most are never reached: so it is not filled.
            self.p, self.q, self.vocab_size = p.new_empty(shape), q.new_empty(shape), both.p.vocab_size
            self.ids = None if ids is None else ids.new_full(shape, self.vocab_size)
        elif self.ids is not None and width > self.p.shape[1]:
            wide = max(width, 2 * self.p.shape[1])
            self.p, self.q, self.ids = _wide(self.p, wide), _wide(self.q, wide), _wide(self.ids, wide, self.vocab_size)
        at, width = self.at(level)[which], self.p.shape[1]
        self.p.index_copy_(0, at, _wide(p, width))
        self.q.index_copy_(0, at, _wide(q, width))
        if self.ids is not None and ids is not None:
            self.ids.index_copy_(0, at, _wide(ids, width, self.vocab_size))
            # Empty places of a family are the root's, which is never asked for.
            self.columns = self.columns.index_copy(0, which, self.columns[which].scatter(1, here.child, both.columns))

    def settle(
        self, which: Int[Tensor, "R"], level: Int[Tensor, "B"], w: Float[Tensor, "B"], token: Int[Tensor, "B"]
    ) -> Float[Tensor, "B"]:
        """A child was rejected in some sequences: settles their parents and returns the weights."""
        assert self.p is not None and self.q is not None
        at = self.at(level)[which]
        settled, p, q = settle(w[which], self.p[at], self.q[at], token[which][:, None])
        self.p.index_copy_(0, at, p)
        self.q.index_copy_(0, at, q)
        return w.index_copy(0, which, settled)


def _wide(x: Shaped[Tensor, "R W"], width: int, fill: float = 0) -> Shaped[Tensor, "R w"]:
    return x if x.shape[1] == width else torch.nn.functional.pad(x, (0, width - x.shape[1]), value=fill)


def _judge(
    proposal: Proposal, target: Scored, rnd: Round, start: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """Every sequence at its own node of its own tree: one step goes down to the node's next child, or tries the node, which
    has none left. A tree of N nodes takes 2N steps at most. Distributions are wide and most steps concern few sequences, so
    only those are computed, and the steps end with the last sequence."""
    tree = proposal.tree
    families, left, judged = Families.of(tree), drawn(tree), inner(tree)  # not yet rejected; something was drawn below
    stack = _Stack(tree.batch, max(1, *target.host_tree.deepest), tree.tokens)
    weights = torch.ones(tree.batch, stack.levels + 1, dtype=torch.float64, device=rnd.device)  # w along the way down
    node, level, alive = start, torch.zeros_like(start), where
    _make(stack, families, proposal, target, start, level, where & _at(judged, start))
    for _ in range(2 * max(target.host_tree.drafted) + 1):
        below, w = left & (tree.parents == node[:, None]), _at(weights, level)
        down = alive & below.any(1) & (w > 0)  # below a node that weighs nothing nothing is kept
        alive = alive & ~rnd.coin("accept", node, w, alive & ~down)
        if not bool(alive.any()):
            break
        # A rejected node hands back to its parent; a child that weighs nothing is rejected without a visit.
        up = alive & ~down
        child = below.int().argmax(1)
        at, level = torch.where(up, node, child), level - up.long()
        node = torch.where(up, _at(tree.parents, node), node)
        token = torch.where(alive, _at(stack.columns, at), 0)  # others may have no column at all
        w = _at(weights, level)
        heavy = heaviness(w, *stack.of(level, token))
        rejected = up | (down & (heavy <= 0))
        which = rejected.nonzero()[:, 0]
        if len(which):
            weights = _set(weights, level, stack.settle(which, level, w, token), rejected)
            left = _set(left, at, ~rejected, rejected)
        down = down & ~rejected
        level = level + down.long()
        node = torch.where(down, child, node)
        weights = _set(weights, level, heavy, down)
        _make(stack, families, proposal, target, node, level, down & _at(judged, node))
    return node, token_after(target, rnd, node, where, judged, stack.left(level))


def _make(
    stack: _Stack,
    families: Families,
    proposal: Proposal,
    target: Scored,
    node: Int[Tensor, "B"],
    level: Int[Tensor, "B"],
    where: Bool[Tensor, "B"],
) -> None:
    """Distributions of the nodes just reached, which plain decoding could have reached too: their weight is not zero."""
    which = where.nonzero()[:, 0]
    if len(which):
        here = families.at(node[which], which)
        stack.add(which, level, node_probs(proposal, target, here, sequences=which), here)


def settle(
    w: Float[Tensor, "B"], p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], token: Int[Tensor, "B 1"]
) -> tuple[Float[Tensor, "B"], Float[Tensor, "B V"], Float[Tensor, "B V"]]:
    """What a parent is left with when a child was rejected: weight, distribution and draft distribution."""
    rest = (w.to(p.dtype)[:, None] * p - q).clamp_min_(0)
    total = rest.sum(-1, keepdim=True)
    q = q.scatter(1, token, 0.0)
    mass = q.sum(-1, keepdim=True)
    # Nothing is missing where p and q agree, or where the parent weighs nothing: then p stays as it is.
    p = torch.where(total > 0, rest / total, p)
    return share(total[:, 0].double(), w), p, torch.where(mass > 0, q / mass, q)


def _at(x: Shaped[Tensor, "B N"], column: Int[Tensor, "B"]) -> Shaped[Tensor, "B"]:
    return x.gather(1, column[:, None])[:, 0]


def _set(
    x: Shaped[Tensor, "B N"], column: Int[Tensor, "B"], value: Shaped[Tensor, "B"], where: Bool[Tensor, "B"]
) -> Shaped[Tensor, "B N"]:
    return x.scatter(1, column[:, None], torch.where(where, value, _at(x, column))[:, None])
