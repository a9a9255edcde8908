"""Block: one decision about a whole drawn chain, instead of one per token.

    w_0 = 1,   w_i = min(1, w_{i-1} p(x_i) / q(x_i))          how much of what the target needs at x_1..x_i arrives there
    R_i = sum (w_i p_i - q_i)+,   h_i = R_i / (R_i + 1 - w_i)    chance to stop after i tokens, if not later

Every position has a coin of its own, and the last one that comes up counts: an unlikely token may be kept because of what
follows it. The token after position i has the law norm((w_i p_i - q_i)+). At the end of the chain nothing more was drawn,
so with q = 0 the same lines say h = w and the law p.

Why it is exact: at position i the law w_i p_i must come out. Going on supplies min(w_i p_i, q_i), stopping the rest, R_i in
all; and as going on fails with probability R_i + 1 - w_i, stopping then with probability h_i is just right.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.host import put
from draftwood.core.legality import RULES, Shape
from draftwood.core.passes import Needs
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.support import Support
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Verdict
from draftwood.verifiers.onward import Judge, drawn, inner, onward
from draftwood.verifiers.pair import Pair, pair_at, pairs_at

_ROWS = 64  # laws that exist at the same time


@dataclass(frozen=True, slots=True)
class Block:
    """Keeps at least as much as rejection on every chain, and on a chain of one token the same."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Block"].draws
    shapes: frozenset[Shape] = RULES["Block"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        def judge(start: Int[Tensor, "B"], where: Bool[Tensor, "B"]) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
            return judge_drawn(proposal, target, rnd, start, where)

        return onward(proposal.tree, target, rnd, judge)


def judge_drawn(
    proposal: Proposal, target: Scored, rnd: Round, start: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """The block rule along the one chain that was drawn below each `start`. Laws that depend on what stands before them are
    asked one by one, and only where plain decoding could have come too: options may have left a token that weighs nothing
    none to follow it."""
    if target.plain:
        return judge_line(proposal, target, rnd, start, where)
    tree = proposal.tree
    chosen = drawn(tree)

    def follow(
        node: Int[Tensor, "B"], pair: Pair, where: Bool[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B"], Float[Tensor, "B W"]]:
        return (chosen & (tree.parents == node[:, None])).int().argmax(1), pair.q

    return judge_chain(proposal, target, rnd, start, where, follow)


def judge_line(
    proposal: Proposal, target: Scored, rnd: Round, start: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """The same, many positions at a time: which they are does not depend on any law. For plain laws."""
    tree = proposal.tree
    nodes, count = line(tree, start, where)
    w = torch.ones_like(start, dtype=torch.float64)
    last, after = start, None
    step = max(1, _ROWS // max(tree.batch, 1))
    for first in range(0, nodes.shape[1] - 1, step):
        here, child = nodes[:, first : first + step], nodes[:, first + 1 : first + step + 1]
        here = here[:, : child.shape[1]]
        position = torch.arange(first, first + here.shape[1], device=here.device)
        asked = (position < count[:, None]) & (w > 0)[:, None]
        if not some(asked):
            break
        row, column = asked.nonzero().unbind(1)
        pair = pairs_at(proposal, target, row, here[asked], child[asked])
        p, q, at = pair.p, pair.q, pair.columns
        top, bottom = (torch.ones_like(here, dtype=torch.float64) for _ in range(2))  # where nothing is asked w stays
        top[asked], bottom[asked] = p.gather(1, at)[:, 0].double(), q.gather(1, at)[:, 0].double()
        along = weights(w, top, bottom)
        before, w = along[:, :-1], along[:, -1]
        rest = missing(before[asked], p, q)
        chance = torch.zeros_like(top)
        total = rest.sum(-1, dtype=torch.float64)
        chance[asked] = share(total, before[asked])
        kept = rnd.coin("accept", here, chance, asked & (before > 0))
        if not some(kept):
            continue
        place = (kept * (1 + torch.arange(kept.shape[1], device=kept.device))).argmax(1)
        hit = kept.any(1)
        last = torch.where(hit, here.gather(1, place[:, None])[:, 0], last)
        index = torch.zeros_like(here).index_put_((row, column), torch.arange(len(row), device=row.device))
        chosen = index.gather(1, place[:, None])[:, 0]
        # Nothing is missing only where p and q agree; the child is kept then, up to rounding.
        left = torch.where((total > 0)[chosen, None], rest[chosen], p[chosen])
        ids = None if pair.support.ids is None else pair.support.ids[chosen]
        found = Support(left, ids, pair.support.vocab)
        after = found if after is None else after.put(found, hit)
    end = nodes.gather(1, count[:, None])[:, 0]
    last = torch.where(rnd.coin("accept", end, w, where & (w > 0)), end, last)
    return last, token_after(target, rnd, last, where, inner(tree), after)


def chains_apart(
    proposal: Proposal, target: Scored, rnd: Round, other: Judge, among: Bool[Tensor, "B"] | None = None
) -> Judge:
    """Rows without branches are judged by the block rule, which other rules become there, and the others by `other`. A row's
    own tree decides, never its neighbours'."""
    outline = target.outline
    straight = put([a == b for a, b in zip(outline.drafted, outline.deepest, strict=True)], rnd.device, torch.bool)
    straight = straight if among is None else straight & among

    def judge(start: Int[Tensor, "B"], where: Bool[Tensor, "B"]) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
        node, token = start, torch.full_like(start, -1)
        for rule, rows in ((other, where & ~straight), (line_judge, where & straight)):
            if some(rows):
                found, said = rule(start, rows)
                node, token = torch.where(rows, found, node), torch.where(rows, said, token)
        return node, token

    def line_judge(start: Int[Tensor, "B"], where: Bool[Tensor, "B"]) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
        return judge_drawn(proposal, target, rnd, start, where)

    return judge


def line(
    tree: TokenTree, start: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B"]]:
    """`start` and the chain that was drawn below it, in order, and how many nodes that chain has."""
    ancestors, chosen = tree.ancestors(), drawn(tree)
    below = ancestors.gather(2, start[:, None, None].expand(-1, tree.num_nodes, 1))[..., 0]
    given = below & ~chosen & (torch.arange(tree.num_nodes, device=start.device) != start[:, None])
    member = chosen & below & ~(ancestors & given[:, None]).any(2) & where[:, None]
    count = member.sum(1)
    order = (~member).int().sort(dim=1, stable=True).indices[:, : max(int(count.max()), 0) if len(count) else 0]
    return torch.cat([start[:, None], order], dim=1), count


def weights(w: Float[Tensor, "B"], top: Float[Tensor, "B L"], bottom: Float[Tensor, "B L"]) -> Float[Tensor, "B L+1"]:
    """w and then min(1, w p/q) one after another; a token that q cannot have drawn weighs nothing."""
    found = [w]
    for ratio in torch.where(bottom > 0, top / bottom, 0.0).unbind(1):
        found.append((found[-1] * ratio).clamp_max(1.0))
    return torch.stack(found, dim=1)


class Follow(Protocol):
    """The next node of the chain after `node`, and the law it was drawn from; where the chain goes on."""

    def __call__(
        self, node: Int[Tensor, "B"], pair: Pair, where: Bool[Tensor, "B"], /
    ) -> tuple[Int[Tensor, "B"], Float[Tensor, "B W"]]: ...


def judge_chain(
    proposal: Proposal,
    target: Scored,
    rnd: Round,
    start: Int[Tensor, "B"],
    where: Bool[Tensor, "B"],
    follow: Follow,
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """The block rule along the chain that `follow` names. The target's law is asked at every node that goes on with w > 0,
    where plain decoding could have come too, and at the end only if it is kept: options may have left it no token at all."""
    goes_on = inner(target.tree)
    node, last, alive = start, start, where
    w = torch.ones_like(start, dtype=torch.float64)
    after: Support | None = None
    for _ in range(1 + max(target.outline.deepest, default=0)):
        going = goes_on.gather(1, node[:, None])[:, 0] & alive
        last = torch.where(rnd.coin("accept", node, w, alive & ~going), node, last)
        if not some(going):
            break
        pair = pair_at(proposal, target, torch.where(going, node, start), going)
        child, q = follow(node, pair, going)
        p = pair.p.to(q.dtype)
        rest = missing(w, p, q)
        total = rest.sum(-1, dtype=torch.float64)
        kept = rnd.coin("accept", node, share(total, w), going)
        last = torch.where(kept, node, last)
        # Nothing is missing only where p and q agree; the child is kept then, up to rounding.
        left = replace(pair.support, prob=torch.where((total > 0)[:, None], rest, p))
        after = left if after is None else after.put(left, kept) if some(kept) else after
        w = weight(w, p, q, pair.column(child))
        alive = going & (w > 0)
        node = torch.where(alive, child, node)
    return last, token_after(target, rnd, last, where, goes_on, after)


def token_after(
    target: Scored,
    rnd: Round,
    last: Int[Tensor, "B"],
    where: Bool[Tensor, "B"],
    judged: Bool[Tensor, "B N"],
    after: Support | None,
) -> Int[Tensor, "B"]:
    """Drawn from what judging left of the law at the last node kept, or from the target's own where nothing was judged."""
    fresh = where & ~judged.gather(1, last[:, None])[:, 0]
    if after is None or some(fresh):
        law = target.support(torch.where(fresh, last, 0), fresh)
        after = law if after is None else after.put(law, fresh)
    return rnd.pick_among("residual", last, after.prob, where, after.places)


def weight(
    w: Float[Tensor, "B"], p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], token: Int[Tensor, "B 1"]
) -> Float[Tensor, "B"]:
    """min(1, w p/q), in float64, at a child's token; one that q cannot have drawn weighs nothing."""
    top, bottom = p.gather(1, token)[:, 0].double(), q.gather(1, token)[:, 0].double()
    return torch.where(bottom > 0, (w * top / bottom).clamp_max(1.0), torch.zeros_like(top))


def missing(w: Float[Tensor, "B"], p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """(w p - q)+: what the drawn child cannot supply."""
    return (w.to(p.dtype)[:, None] * p - q).clamp_min(0)


def share(total: Float[Tensor, "B"], w: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    """R / (R + 1 - w), and 1 for 0/0."""
    whole = total + (1 - w)  # in this order: with w = 1 the share must be 1, and (R + 1) - 1 is not always R
    return torch.where(whole > 0, total / whole, torch.ones_like(w))
