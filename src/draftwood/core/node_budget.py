"""One budget of drafted nodes for a whole batch: the best nodes are kept, whichever sequence they belong to. The budget is a
number, or what pays.

    sequence 0   -1  -2  -3        total 4: both first levels, and of the second level those of sequences 0 and 1
    sequence 1   -1  -2  -3
    sequence 2   -1

A score is known before the token was drawn, so cutting by it cannot bias the output: neither by the sequence's own scores
nor by those of others, whose tokens are independent of it. Nodes are kept in the order of their scores until one does not
pay; nothing behind it is looked at, because the score of a node's child depends on the node's own token.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.competition import Price
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.protocols import TreePolicy
from draftwood.core.tree import TokenTree


def selected(policy: TreePolicy, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
    """What the pass will score: the policy's choice, within the budget of the batch."""
    kept = policy.select(tree, limit)
    if not limit.shared or tree.num_nodes == 1:
        return kept
    if limit.correction is not None:
        tree = replace(tree, score=limit.correction.log_chances(tree, limit.tier.depth))
    if limit.price is not None:
        return while_paying(tree, kept, limit.price, limit.total, policy.draw, policy.shape)
    assert limit.total is not None
    return within_total(tree, kept, limit.total, policy.draw, policy.shape)


def within_total(
    tree: TokenTree, kept: Bool[Tensor, "B N"], total: int, draw: Draw, shape: Shape = Shape.TREE
) -> Bool[Tensor, "B N"]:
    """Of the kept nodes the `total` best by score, of equals those of earlier sequences and then older nodes. Scores never
    grow along a path, so the set is closed under parents and earlier drawn siblings.

    Equal independent draws share a node, so what can be cut is more than a node, and counts as many nodes as it has draws:
    how many nodes those became depends on their tokens, and a cut must not. Siblings are cut together. Independent paths are
    cut by levels, because a rule may rely on the end of each path not being decided by the others.
    """
    return _kept(tree, kept, draw, shape, lambda score, cost: _best(score, cost, total))


def while_paying(
    tree: TokenTree,
    kept: Bool[Tensor, "B N"],
    price: Price,
    total: int | None,
    draw: Draw,
    shape: Shape = Shape.TREE,
) -> Bool[Tensor, "B N"]:
    """Of the kept nodes the best ones by score, as long as each raises the tokens per second that are expected of the round,
    and at most `total`. A score is the logarithm of a node's chance together with all nodes above it."""
    return _kept(tree, kept, draw, shape, lambda score, cost: _paying(score, cost, price, total))


def _kept(
    tree: TokenTree,
    kept: Bool[Tensor, "B N"],
    draw: Draw,
    shape: Shape,
    choose: Callable[[Float[Tensor, "B N"], Int[Tensor, "B N"]], Bool[Tensor, "B N"]],
) -> Bool[Tensor, "B N"]:
    """What is chosen of the units that may be cut, by their scores and their costs in nodes."""
    nodes = torch.arange(tree.num_nodes, device=kept.device).expand_as(kept)
    drafted = kept & (nodes > 0)
    draws = torch.where(drafted, tree.copies.clamp_min(1), 0)
    if draw is not Draw.IID:
        return kept & (choose(tree.score.masked_fill(~drafted, -torch.inf), drafted.long()) | (nodes == 0))
    unit = tree.depths() if shape is Shape.PATHS else tree.parents.clamp_min(0)  # siblings are named by their parent
    score = torch.full_like(tree.score, -torch.inf).scatter_reduce(
        1, unit, tree.score.masked_fill(~drafted, -torch.inf), "amax"
    )
    cost = torch.zeros_like(draws).scatter_add(1, unit, draws)
    if shape is Shape.PATHS:  # a path that has ended costs as much as the others, or its end would decide about theirs
        cost = torch.where(cost > 0, cost[:, 1:2], 0)
    return kept & (choose(score, cost).gather(1, unit) | (nodes == 0))


def whole_levels(tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
    """The levels of each sequence that fit its limit together: for a tree that was drafted before the limit was known. A
    level is kept or cut as a whole and counts as many nodes as it has draws, for the reasons above."""
    depth = torch.where(tree.live, tree.depths(), 0)
    draws = torch.where(tree.live & (tree.parents >= 0), tree.copies.clamp_min(1), 0)
    used = torch.zeros_like(draws).scatter_add(1, depth, draws).cumsum(1)  # by level
    return tree.live & (used.gather(1, depth) <= limit.nodes[:, None]) & (depth <= limit.depth[:, None])


def _best(score: Float[Tensor, "B N"], cost: Int[Tensor, "B N"], total: int) -> Bool[Tensor, "B N"]:
    """The best of the whole batch, one after another until one does not fit."""
    order = score.flatten().sort(descending=True, stable=True).indices
    fits = cost.flatten()[order].cumsum(0) <= total
    return torch.zeros_like(fits).scatter(0, order, fits).view_as(score)


def _paying(
    score: Float[Tensor, "B N"], cost: Int[Tensor, "B N"], price: Price, total: int | None
) -> Bool[Tensor, "B N"]:
    """The best of the whole batch, one after another until one does not pay."""
    found = score.flatten().sort(descending=True, stable=True)
    used = cost.flatten()[found.indices].cumsum(0)
    most = len(price.seconds) - 1
    most = most if total is None else min(total, most)
    rate = (price.tokens + found.values.exp().cumsum(0)) / price.seconds.to(score.dtype)[used.clamp_max(most)]
    plain = (price.tokens / price.seconds[:1]).to(score.dtype)
    fits = ((rate > torch.cat([plain, rate[:-1]])) & (used <= most)).long().cumprod(0).bool()
    return torch.zeros_like(fits).scatter(0, found.indices, fits).view_as(score)
