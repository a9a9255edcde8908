"""The one expansion loop: ask the drafter for distributions at the frontier, let the policy draw children, repeat."""

from collections.abc import Callable
from dataclasses import replace
from math import log

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.protocols import TreePolicy
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.trees.spread import joined

Step = Callable[[TokenTree, Int[Tensor, "B F"]], tuple[DraftProbs, Float[Tensor, "B F H"] | None]]
"""(tree, frontier) -> child distributions of the frontier nodes, B * F in row-major order, and the draft's hidden states."""

NO_NUMBERS = "propose: the draft's probabilities are not numbers; its weights may be damaged"


def grow(base: Proposal, limit: Limit, policy: TreePolicy, rnd: Round, step: Step) -> Proposal:
    """Level by level until the tier's depth or an empty frontier. A sequence that has reached its own depth waits for the
    others. Policies that do not grow by levels say how many passes they may ask for. On an accelerator a frontier is not
    read: all levels are run, and nodes that get no children are -1 in it.

    A step that fails ends growth, and what was drawn stays: dropping it because of what came after it would bias
    the output. Where levels are grown, no pass is run over nodes that may not get children.
    """
    fault: str | None = None
    growth = policy.start(base, limit, rnd)
    passes, shared = base.passes, limit.shallowest
    states: Float[Tensor, "B M H"] | None = None  # hidden states of the nodes that were run, for `proceed`
    own = torch.ones_like(growth.tree.score)  # probabilities of the nodes' own tokens, for `proceed`
    most = policy.passes(limit)
    # No node is kept without the path to it, so a tree is never deeper than its budget.
    for _ in range(min(limit.tier.depth, limit.tier.nodes - 1) if most is None else most):
        if not growth.frontier.shape[1]:
            break
        if growth.level is None or growth.level >= shared:
            growth = replace(growth, frontier=_open(growth, limit))
        allowed = growth.frontier >= 0
        if limit.least:  # paths that are too improbable end; what was drawn is never asked for its own probability
            chance = growth.tree.score.gather(1, growth.frontier.clamp_min(0))
            growth = replace(growth, frontier=torch.where(chance >= log(limit.least), growth.frontier, -1))
            allowed = growth.frontier >= 0
        if limit.watches:
            asked = own.gather(1, growth.frontier.clamp_min(0))
            if limit.surer:
                allowed = allowed & (asked >= put(limit.surer, asked.device, asked.dtype)[:, None])
            allowed = allowed & limit.proceed(growth.tree, growth.frontier, _above(growth, states), asked)
            if most is None:  # others need to know which of their nodes were refused
                growth = replace(growth, frontier=torch.where(allowed, growth.frontier, -1))
        if host.on_host(rnd.device) and not bool((growth.frontier >= 0).any()):
            break
        try:
            q, hidden = step(growth.tree, growth.frontier)
        except Exception as error:
            fault = f"propose: {type(error).__name__}: {error}"
            break
        passes += 1
        if not_numbers(q.prob):
            fault = NO_NUMBERS
            break
        if hidden is not None and limit.watches:
            states = _with_states(states, growth, hidden)
        before, growth = growth, policy.expand(growth, q, allowed, limit, rnd)
        if limit.watches:
            own = _with_own(own, before, growth.tree, q, rnd)
    q_index = torch.nn.functional.pad(growth.q_index, (0, growth.tree.num_nodes - growth.q_index.shape[1]), value=-1)
    tree = growth.tree
    if rnd.sampler.any_greedy and policy.draw is not Draw.GIVEN:
        # Greedy tokens were taken, not drawn: no distribution stands behind them, and none is needed, because the
        # target's distribution is a single token.
        greedy = rnd.sampler.greedy()[:, None]
        tree = replace(tree, copies=torch.where(greedy, 0, tree.copies))
        q_index = torch.where(greedy, -1, q_index)
    return Proposal(
        tree,
        policy.draw,
        joined(growth.q),
        q_index,
        passes=passes,
        fault=fault,
        max_depth=base.levels + limit.tier.depth,
        max_children=base.siblings + policy.max_children(limit),
    )


def _with_own(
    own: Float[Tensor, "B M"], before: Growth, tree: TokenTree, q: DraftProbs, rnd: Round
) -> Float[Tensor, "B N"]:
    """The probability that the draft gave the token of each node, with those of the nodes that were added below the
    frontier. 1 for a node whose distribution was found in an earlier pass."""
    first, frontier = before.tree.num_nodes, before.frontier
    if tree.num_nodes == first:
        return own
    same = tree.parents[:, first:, None] == frontier[:, None]  # [B, new, F]
    rows = torch.arange(frontier.numel(), device=frontier.device).view_as(frontier).gather(1, same.long().argmax(2))
    found = q.at(rows, tree.tokens[:, first:], rnd.requests[0].vocab_size).to(own.dtype)
    return torch.cat([own, torch.where(same.any(2), found, 1.0)], dim=1)


def _above(growth: Growth, states: Float[Tensor, "B M H"] | None) -> Float[Tensor, "B F H"] | None:
    """Hidden states of the frontier nodes' parents."""
    if states is None:
        return None
    parent = growth.tree.parents.gather(1, growth.frontier.clamp_min(0)).clamp_min(0)
    return states.gather(1, parent[..., None].expand(-1, -1, states.shape[-1]))


def _with_states(
    states: Float[Tensor, "B M H"] | None, growth: Growth, hidden: Float[Tensor, "B F H"]
) -> Float[Tensor, "B N H"]:
    """The hidden states of the frontier among those of all nodes."""
    batch, nodes, wide = len(hidden), growth.tree.num_nodes, hidden.shape[-1]
    whole = hidden.new_zeros(batch, nodes + 1, wide)  # the last one takes those of padding
    if states is not None:
        whole[:, : states.shape[1]] = states
    at = torch.where(growth.frontier >= 0, growth.frontier, nodes)
    return whole.scatter(1, at[..., None].expand_as(hidden), hidden)[:, :nodes]


def not_numbers(found: Float[Tensor, "R W"]) -> bool:
    """Whether all of these are NaN, as broken weights leave them. One number of each is enough: softmax spreads a NaN to its
    whole distribution. On an accelerator nothing is read; there the check of proposals finds it."""
    first = found[:, :1]
    return host.on_host(first.device) and bool(first.numel()) and bool(first.isnan().all())


def by_score(tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
    """The best `limit.nodes` drafted nodes of each sequence by score, older nodes first among equals.

    Scores never grow along a path and siblings are in draw order, so the set is closed under parents and earlier drawn
    siblings; and a score was known before its token, so cutting cannot bias. Merged iid draws are the exception: a node
    that stands for several draws cannot be cut between them, so policies that draw them stay within the budget by
    themselves.
    """
    if host.on_host(tree.tokens.device) and tree.num_nodes - 1 <= min(*limit.budgets, limit.shallowest):
        return tree.live  # too few to be too many or too deep
    return best_of(tree, limit) & (tree.depths(limit.tier.depth) <= limit.depth[:, None])


def best_of(tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
    """`by_score` for trees that no sequence has grown beyond its depth."""
    if host.on_host(tree.tokens.device) and tree.num_nodes - 1 <= min(limit.budgets, default=0):
        return tree.live  # too few to be too many
    score = tree.score.masked_fill(~tree.live, -torch.inf)
    order = score[:, 1:].sort(dim=1, descending=True, stable=True).indices[:, : limit.tier.nodes - 1] + 1
    rank = torch.arange(order.shape[1], device=order.device)
    kept = torch.zeros_like(tree.live).scatter(1, order, rank < limit.nodes[:, None])
    kept[:, 0] = True
    return kept & tree.live


def _open(growth: Growth, limit: Limit) -> Int[Tensor, "B F"]:
    """The frontier less the nodes at their sequence's full depth."""
    if growth.level is not None:
        return torch.where((growth.level < limit.depth)[:, None], growth.frontier, -1)
    depth = growth.tree.depths().gather(1, growth.frontier.clamp_min(0))
    return torch.where((growth.frontier >= 0) & (depth < limit.depth[:, None]), growth.frontier, -1)
