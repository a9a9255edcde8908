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

from draftwood.core.legality import RULES, Shape
from draftwood.core.passes import Needs
from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.support import Support
from draftwood.core.verdict import Verdict
from draftwood.verifiers.onward import drawn, inner, onward
from draftwood.verifiers.pair import Pair, pair_at


@dataclass(frozen=True, slots=True)
class Block:
    """Keeps at least as much as rejection on every chain, and on a chain of one token the same."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Block"].draws
    shapes: frozenset[Shape] = RULES["Block"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        tree = proposal.tree
        chosen = drawn(tree)

        def follow(
            node: Int[Tensor, "B"], pair: Pair, where: Bool[Tensor, "B"]
        ) -> tuple[Int[Tensor, "B"], Float[Tensor, "B W"]]:
            return (chosen & (tree.parents == node[:, None])).int().argmax(1), pair.q

        def judge(start: Int[Tensor, "B"], where: Bool[Tensor, "B"]) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
            return judge_chain(proposal, target, rnd, start, where, follow)

        return onward(tree, target, rnd, judge)


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
