"""One budget of drafted nodes for a whole batch: the best nodes are kept, whichever sequence they belong to.

    sequence 0   -1  -2  -3        total 4: both first levels, and of the second level those of sequences 0 and 1
    sequence 1   -1  -2  -3
    sequence 2   -1

A score is known before the token was drawn, so cutting by it cannot bias the output: neither by the sequence's own scores
nor by those of others, whose tokens are independent of it.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.protocols import TreePolicy
from draftwood.core.tree import TokenTree


def selected(policy: TreePolicy, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
    """What the pass will score: the policy's choice, within the budget of the batch."""
    kept = policy.select(tree, limit)
    if limit.total is None or not limit.shared or tree.num_nodes == 1:
        return kept
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
    nodes = torch.arange(tree.num_nodes, device=kept.device).expand_as(kept)
    drafted = kept & (nodes > 0)
    draws = torch.where(drafted, tree.copies.clamp_min(1), 0)
    if draw is not Draw.IID:
        return kept & (_best(tree.score.masked_fill(~drafted, -torch.inf), drafted.long(), total) | (nodes == 0))
    unit = tree.depths() if shape is Shape.PATHS else tree.parents.clamp_min(0)  # siblings are named by their parent
    score = torch.full_like(tree.score, -torch.inf).scatter_reduce(
        1, unit, tree.score.masked_fill(~drafted, -torch.inf), "amax"
    )
    cost = torch.zeros_like(draws).scatter_add(1, unit, draws)
    if shape is Shape.PATHS:  # a path that has ended costs as much as the others, or its end would decide about theirs
        cost = torch.where(cost > 0, cost[:, 1:2], 0)
    return kept & (_best(score, cost, total).gather(1, unit) | (nodes == 0))


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
