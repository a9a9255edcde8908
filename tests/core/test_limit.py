"""Limits of a round: who may be drafted, and how far."""

import torch

from draftwood.core.limit import Limit, always
from draftwood.core.tree import TokenTree


def test_nodes_get_children_as_far_as_the_limit_goes_unless_somebody_objects() -> None:
    limit = Limit.of([2, 0], [4, 4])
    assert limit.nodes.tolist() == [4, 0], "who is not drafted has no nodes"
    tree, frontier = TokenTree.roots(torch.tensor([5, 6])), torch.zeros(2, 1, dtype=torch.int64)
    assert limit.proceed is always
    assert limit.proceed(tree, frontier, None).tolist() == [[True], [True]]
