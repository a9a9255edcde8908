"""Limits of a round: who may be drafted, and how far."""

from dataclasses import replace

import pytest
import torch

from draftwood.core.host import sealed
from draftwood.core.limit import Limit, Tier, always
from draftwood.core.tree import TokenTree
from draftwood.errors import EngineError


def test_nodes_get_children_as_far_as_the_limit_goes_unless_proceed_stops_them() -> None:
    limit = Limit.of([2, 0], [4, 4])
    assert limit.nodes.tolist() == [4, 0], "who is not drafted has no nodes"
    tree, frontier = TokenTree.roots(torch.tensor([5, 6])), torch.zeros(2, 1, dtype=torch.int64)
    assert limit.proceed is always
    assert limit.proceed(tree, frontier, None, torch.ones(2, 1)).tolist() == [[True], [True]]


def test_a_depth_that_only_the_device_knows_shortens_and_fixes_no_shape() -> None:
    limit = replace(Limit.of([4, 4, 0], [4, 4, 4]), shorter=torch.tensor([1, 9, 2]))
    assert limit.depth.tolist() == [1, 4, 0] and limit.nodes.tolist() == [4, 4, 0]
    assert limit.tier == Tier(4, 5) and limit.shallowest == 0 and not limit.watches
    cut = limit.at_most([3, 2, 3], [3, 3, 3])
    assert cut.depth.tolist() == [1, 2, 0] and cut.depths == (3, 2, 0)
    assert cut.take([1, 0]).depth.tolist() == [2, 1]
    assert cut.take([1, 0]).with_tensors(cut.depth[:2], cut.nodes[:2]).depth.tolist() == [1, 2]
    assert Limit.of([4, 2], [4, 4]).shallowest == 2, "where the host knows them all"


def test_a_limit_takes_its_tensors_where_it_may_not_make_any() -> None:
    limit = Limit.of([2, 3], [4, 5], total=7)
    depth, nodes = torch.tensor([1, 1]), torch.tensor([2, 2])
    given = limit.with_tensors(depth, nodes)
    with sealed():
        assert given.depth is depth and given.nodes is nodes
        with pytest.raises(EngineError, match="replay"):
            assert limit.depth.tolist()
    assert (given.depths, given.budgets, given.total, given.tier) == ((2, 3), (4, 5), 7, limit.tier)
    assert limit.depth.tolist() == [2, 3], "and the limit itself is as it was"
