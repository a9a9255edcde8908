"""Block: one decision about a whole drawn chain, instead of one per token.

    w_0 = 1,   w_i = min(1, w_{i-1} p(x_i) / q(x_i))             the share of the target's demand at x_1..x_i that arrives
    R_i = sum (w_i p_i - q_i)+,   h_i = R_i / (R_i + 1 - w_i)    chance to stop after i tokens, if not later

Every position has a coin of its own, and the last one that comes up counts: an unlikely token may be accepted because of
what follows it. The token after position i has the distribution norm((w_i p_i - q_i)+). At the end of the chain nothing
more was drawn, so with q = 0 the same lines give h = w and the distribution p.

Why it is exact: at position i the distribution w_i p_i must come out. Going on supplies min(w_i p_i, q_i), stopping the
rest, R_i in all; and as going on fails with probability R_i + 1 - w_i, stopping then with probability h_i is just right.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.host import put
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round, some
from draftwood.core.sampling.draft_probs import Aligned
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED, TokenTree
from draftwood.core.verdict import Verdict
from draftwood.verifiers.block_by_kernels import judged_by_kernels
from draftwood.verifiers.family import Families, Family
from draftwood.verifiers.formulas.draws import of
from draftwood.verifiers.node_probs import node_probs
from draftwood.verifiers.onward import Judge, Judged, Mask, Nodes, drawn, inner, onward

_AT_LEAST, _ENTRIES = 64, 2**20  # distributions asked for together, and entries of packed ones that they may have


@dataclass(frozen=True, slots=True)
class Block:
    """Accepts at least as much as rejection on every chain, and on a chain of one token the same."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Block"].draws
    shapes: frozenset[Shape] = RULES["Block"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        return judged_by_kernels(proposal, target, rnd, _verify)


def _verify(proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
    def judge(start: Nodes, where: Mask) -> Judged:
        return judge_drawn(proposal, target, rnd, start, where)

    return onward(proposal.tree, target, rnd, judge)


def judge_drawn(
    proposal: Proposal, target: Scored, rnd: Round, start: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """The block rule along the one chain that was drawn below each `start`. Distributions that depend on the path are made
    one by one, and only at nodes that plain decoding could have reached: behind a token of weight 0 options may leave no
    token."""
    if target.plain:
        return judge_line(proposal, target, rnd, start, where)
    return judge_chain(
        proposal, target, rnd, start, where, lambda here, both: ((here.copies > 0).int().argmax(1), both.q)
    )


def judge_line(
    proposal: Proposal, target: Scored, rnd: Round, start: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """The same for plain distributions, many positions at a time: which they are does not depend on any distribution."""
    tree = proposal.tree
    nodes, count = line(tree, start, where)
    w = torch.ones_like(start, dtype=torch.float64)
    last, after, p = start, None, None
    first = step = 0
    while (first := first + step) < nodes.shape[1] - 1:
        step = max(1, at_once(p) // max(tree.batch, 1))
        here, child = nodes[:, first : first + step], nodes[:, first + 1 : first + step + 1]
        here = here[:, : child.shape[1]]
        position = torch.arange(first, first + here.shape[1], device=here.device)
        asked = (position < count[:, None]) & (w > 0)[:, None]
        if not some(asked):
            break
        sequence, column = asked.nonzero().unbind(1)
        if not len(sequence):  # an accelerator looks here, not above
            break
        p, q, ratio = along_chains(proposal, target, sequence, here[asked], child[asked])
        top, bottom = (torch.ones_like(here, dtype=torch.float64) for _ in range(2))  # where nothing is asked w stays
        top[asked], bottom[asked] = ratio
        along = weights(w, top, bottom)
        before, w = along[:, :-1], along[:, -1]
        chance = torch.zeros_like(top)
        chance[asked] = share(p.minus(q, before[asked]).mass(), before[asked])
        kept = rnd.coin("accept", here, chance, asked & (before > 0))
        if not some(kept):
            continue
        place = (kept * (1 + torch.arange(kept.shape[1], device=kept.device))).argmax(1, keepdim=True)
        hit = kept.any(1)
        last = torch.where(hit, here.gather(1, place)[:, 0], last)
        each = torch.arange(len(sequence), device=here.device)
        index = torch.zeros_like(here).index_put_((sequence, column), each).gather(1, place)[:, 0]
        rest_p, rest_q = p.take(index).table(), q.take(index).table()
        found = rest_p.unless_empty(rest_p.minus(rest_q, before.gather(1, place)[:, 0]))
        after = found if after is None else after.put(found, hit)
    end = nodes.gather(1, count[:, None])[:, 0]
    last = torch.where(rnd.coin("accept", end, w, where & (w > 0)), end, last)
    return last, token_after(target, rnd, last, where, inner(tree), after)


def along_chains(
    proposal: Proposal, target: Scored, sequence: Int[Tensor, "R"], node: Int[Tensor, "R"], child: Int[Tensor, "R"]
) -> tuple[TokenProbs, TokenProbs, tuple[Float[Tensor, "R"], Float[Tensor, "R"]]]:
    """p and q at any nodes of any sequences, over p's tokens; and p and q of the child that was drawn at each. Packed where
    sampling leaves few tokens: a table would be as wide as the broadest distribution, which may have thousands where most
    have a dozen."""
    assert proposal.q is not None
    token, index = proposal.tree.tokens[sequence, child], proposal.q_indices()[sequence, node]
    p = target.probs(node, sequence)
    p = p if p.ids is None else p.using(p.prob.double())
    ratio = p.at(token).double(), proposal.q.at(index, token, target.vocab_size).double()
    return p, proposal.q.over(p, index), ratio


def at_once(before: TokenProbs | None) -> int:
    """How many distributions to ask for together, judging by the last ones."""
    if before is None or before.ids is None:
        return _AT_LEAST
    return max(_AT_LEAST, _ENTRIES * len(before) // max(len(before.ids), 1))


def chains_apart(
    proposal: Proposal, target: Scored, rnd: Round, other: Judge, among: Bool[Tensor, "B"] | None = None
) -> Judge:
    """Sequences without branches are judged by the block rule, to which other rules reduce there, the others by `other`. The
    tree of a sequence decides, never those of the others."""
    host_tree = target.host_tree
    straight = put([a == b for a, b in zip(host_tree.drafted, host_tree.deepest, strict=True)], rnd.device, torch.bool)
    straight = straight if among is None else straight & among

    def judge(start: Nodes, where: Mask) -> Judged:
        node, token = start, torch.full_like(start, -1)
        for rule, here in ((other, where & ~straight), (line_judge, where & straight)):
            if bool(here.any()):
                found, said = rule(start, here)
                node, token = torch.where(here, found, node), torch.where(here, said, token)
        return node, token

    def line_judge(start: Nodes, where: Mask) -> Judged:
        return judge_drawn(proposal, target, rnd, start, where)

    return judge


def line(
    tree: TokenTree, start: Int[Tensor, "B"], where: Bool[Tensor, "B"]
) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B"]]:
    """`start` and the chain that was drawn below it, in order, and how many nodes that chain has."""
    chosen = drawn(tree)
    if not some(start > 0) and not some((~chosen & tree.live & (tree.role == SCORED))[:, 1:]):
        member = chosen & where[:, None]
    else:
        member = _drawn_below(tree, start, chosen) & where[:, None]
    count = member.sum(1)
    order = (~member).int().sort(dim=1, stable=True).indices[:, : max(int(count.max()), 0) if len(count) else 0]
    return torch.cat([start[:, None], order], dim=1), count


def _drawn_below(tree: TokenTree, start: Int[Tensor, "B"], chosen: Bool[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
    """Drawn nodes below `start` with nothing given between."""
    ancestors = tree.ancestors()
    below = ancestors.gather(2, start[:, None, None].expand(-1, tree.num_nodes, 1))[..., 0]
    given = below & ~chosen & (torch.arange(tree.num_nodes, device=start.device) != start[:, None])
    return chosen & below & ~(ancestors & given[:, None]).any(2)


def weights(w: Float[Tensor, "B"], top: Float[Tensor, "B L"], bottom: Float[Tensor, "B L"]) -> Float[Tensor, "B L+1"]:
    """w and then min(1, w p/q) one after another; 0 from a token on that q cannot have drawn.

    All at once: a product cut off at 1 is the whole product, divided by its greatest value so far if that is above 1.
    """
    ratio = torch.where(bottom > 0, top.log() - bottom.log(), -torch.inf)  # as logarithms nothing overflows
    way = torch.cat([w[:, None].log(), ratio], dim=1).cumsum(1)
    return (way - way.cummax(1).values.clamp_min(0.0)).exp()


class Follow(Protocol):
    """Which child goes on the chain, and the distribution it was drawn from; where the chain goes on."""

    def __call__(self, here: Family, both: Aligned, /) -> tuple[Int[Tensor, "B"], TokenProbs]: ...


def judge_chain(
    proposal: Proposal,
    target: Scored,
    rnd: Round,
    start: Int[Tensor, "B"],
    where: Bool[Tensor, "B"],
    follow: Follow,
) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """The block rule along the chain that `follow` names. The target's distribution is made at every node that goes on with
    w > 0, which plain decoding could have reached, and at the end only if it is accepted: options may have left
    it no token."""
    goes_on, families = inner(target.tree), Families.of(target.tree)
    node, last, alive = start, start, where
    w = torch.ones_like(start, dtype=torch.float64)
    after: TokenProbs | None = None
    for _ in range(1 + max(target.host_tree.deepest, default=0)):
        going = goes_on.gather(1, node[:, None])[:, 0] & alive
        last = torch.where(rnd.coin("accept", node, w, alive & ~going), node, last)
        if not bool(going.any()):
            break
        here = families.at(torch.where(going, node, start))
        both = node_probs(proposal, target, here, going)
        place, q = follow(here, both)
        p = both.p.using(both.p.prob.to(q.prob.dtype))
        rest = p.minus(q, w)
        kept = rnd.coin("accept", node, share(rest.mass(), w), going)
        last = torch.where(kept, node, last)
        if some(kept):
            left = p.unless_empty(rest)
            after = left if after is None else after.put(left, kept)
        w = weight(w, p.prob, q.prob, both.columns.gather(1, place[:, None]))
        alive = going & (w > 0)
        node = torch.where(alive, of(here.child, place), node)
    return last, token_after(target, rnd, last, where, goes_on, after)


def token_after(
    target: Scored,
    rnd: Round,
    last: Int[Tensor, "B"],
    where: Bool[Tensor, "B"],
    judged: Bool[Tensor, "B N"],
    after: TokenProbs | None,
) -> Int[Tensor, "B"]:
    """Drawn from what judging left of the distribution at the last accepted node, or from the target's own where nothing was
    judged."""
    fresh = where & ~judged.gather(1, last[:, None])[:, 0]
    if after is None or some(fresh):
        probs = target.probs(torch.where(fresh, last, 0), where=fresh)
        after = probs if after is None else after.put(probs, fresh)
    return rnd.pick("residual", last, after, where)


def weight(
    w: Float[Tensor, "B"], p: Float[Tensor, "B V"], q: Float[Tensor, "B V"], token: Int[Tensor, "B 1"]
) -> Float[Tensor, "B"]:
    """min(1, w p/q), in float64, at a child's token; 0 for one that q cannot have drawn."""
    return heaviness(w, p.gather(1, token)[:, 0], q.gather(1, token)[:, 0])


def heaviness(w: Float[Tensor, "B"], top: Float[Tensor, "B"], bottom: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    top, bottom = top.double(), bottom.double()
    return torch.where(bottom > 0, (w * top / bottom).clamp_max(1.0), torch.zeros_like(top))


def share(total: Float[Tensor, "B"], w: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    """R / (R + 1 - w), and 1 for 0/0."""
    whole = total + (1 - w)  # in this order: with w = 1 the share must be 1, and (R + 1) - 1 is not always R
    return torch.where(whole > 0, total / whole, torch.ones_like(w))
