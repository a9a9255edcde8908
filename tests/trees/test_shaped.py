"""A shaped tree is the topology it was given, filled with tokens."""

import pytest
import torch

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_drafter, check_policy
from draftwood.testing.exact import joint_error
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import context_free, near, random_probs
from draftwood.trees.best_shape import positional
from draftwood.trees.shaped import Shaped
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from small_trees import every_tree, grown, one_round, paths

BUSHY = (0, 0, 0, 1, 1, 2, 4, 7)


@pytest.mark.parametrize("draw", [Draw.DISTINCT, Draw.GIVEN])
def test_the_contracts_hold(draw: Draw) -> None:
    check_policy(Shaped(BUSHY, draw), depth=4)
    check_drafter(TableDrafter(random_probs(6, 3)), Shaped(BUSHY, draw), 6)


@pytest.mark.parametrize("draw", [Draw.DISTINCT, Draw.GIVEN])
def test_nodes_stand_where_the_topology_says(draw: Draw) -> None:
    policy = Shaped(BUSHY, draw)
    assert policy.num_nodes == 8 and policy.depth == 4
    tree = grown(policy, random_probs(6, 1), 6, Limit.of([4, 4], [8, 8])).tree
    assert tree.parents[:, 1:].tolist() == [list(BUSHY)] * 2 and tree.live.all()
    deep = Shaped(positional((0.5, 0.3, 0.2), 30, 6))
    tree = grown(deep, random_probs(6, 1), 6, Limit.of([6], [30])).tree
    assert tuple(tree.parents[0, 1:].tolist()) == deep.parents


def test_given_children_are_the_best_tokens_by_rank() -> None:
    probs = random_probs(6, 1)
    tree = grown(Shaped((0, 0, 2), Draw.GIVEN), probs, 6, Limit.of([2], [3])).tree
    first, second = torch.tensor(probs((0,))).topk(2).indices.tolist()
    assert paths(tree) == ((first,), (second,), (second, int(torch.tensor(probs((0, second))).argmax())))


def test_regular_topologies_are_static_trees() -> None:
    probs = random_probs(3, 2)
    shaped, static = every_tree(Shaped((0, 0, 1, 2)), probs, 3, 2, 4), every_tree(Static((2, 1)), probs, 3, 2, 4)
    assert shaped.keys() == static.keys() and max(abs(shaped[t] - static[t]) for t in static) < 1e-12


def test_distributions_with_little_support_leave_places_empty() -> None:
    tree = grown(Shaped(BUSHY), context_free((0.0, 0.5, 0.5, 0.0)), 4, Limit.of([4], [8])).tree
    kept = sorted(len(path) for path in paths(tree))
    assert kept == [1, 1, 2, 2, 2, 3, 4] and {t for path in paths(tree) for t in path} == {1, 2}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_output_is_the_targets_under_any_budget(nodes: int) -> None:
    probs = random_probs(3, 7)
    draft, policy = near(probs, 3, 8, 0.5), Shaped((0, 0, 1, 3))
    assert joint_error(one_round(policy, 3, nodes, probs, draft, vocab_size=3), probs, 3, 4) < 1e-12
    given = Shaped((0, 0, 1, 3), Draw.GIVEN)
    assert joint_error(one_round(given, 3, nodes, probs, draft, vocab_size=3, verifier=Match()), probs, 3, 4) < 1e-12


def test_rows_end_where_they_end() -> None:
    limit = Limit.of([4, 1, 0, 2], [8, 8, 8, 4])
    tree = grown(Shaped(BUSHY), random_probs(6, 1), 6, limit).tree
    assert Shaped(BUSHY).select(tree, limit)[:, 1:].sum(1).tolist() == [8, 3, 0, 4]


def test_shapes_are_named_for_what_rules_may_rely_on() -> None:
    assert Shaped((0, 1, 2)).shape is Shape.CHAIN and Shaped((0, 0)).shape is Shape.TREE


@pytest.mark.parametrize("parents", [(1,), (0, 3), (0, -1), (0, 1, 0)])
def test_parents_out_of_order_are_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="parents"):
        Shaped(parents)


def test_independent_draws_are_refused() -> None:
    with pytest.raises(OptionError, match="independent"):
        Shaped((0, 0), Draw.IID)
