"""What drafts cost is learnt by their size, chains apart from trees."""

import random

import pytest

from draftwood.controllers.costs.draft_cost import DraftCost


def test_measured_sizes_are_known_and_others_lie_on_the_line() -> None:
    cost, rng = DraftCost(), random.Random(0)
    for _ in range(300):
        levels, more = rng.choice([(2, 2), (3, 8), (5, 20)])
        cost.observe(levels, levels + more, (0.002 + 0.003 * levels + 0.0005 * (levels + more)) * rng.uniform(0.9, 1.1))
    assert cost.seconds(3, 11) == pytest.approx(0.0165, rel=0.1)
    assert cost.seconds(4, 14) == pytest.approx(0.021, rel=0.15)


def test_a_chain_in_one_call_does_not_make_trees_look_cheap() -> None:
    cost = DraftCost()
    for _ in range(20):
        cost.observe(4, 4, 0.004)
        cost.observe(4, 8, 0.020)
    assert cost.seconds(4, 4) == pytest.approx(0.004, rel=0.05)
    assert cost.seconds(4, 8) == pytest.approx(0.020, rel=0.05)


def test_what_was_never_measured_costs_what_the_other_kind_does_and_nothing_at_first() -> None:
    cost = DraftCost()
    assert cost.seconds(3, 8) == 0
    cost.observe(3, 3, 0.01)
    assert cost.seconds(3, 8) >= cost.seconds(3, 3) > 0


def test_a_busy_moment_is_clipped() -> None:
    cost = DraftCost()
    for _ in range(50):
        cost.observe(3, 3, 0.01)
    cost.observe(3, 3, 5.0)
    assert cost.seconds(3, 3) < 0.012


def test_what_is_scaled_costs_so_much_more_at_every_size() -> None:
    cost = DraftCost()
    for levels, nodes in ((2, 2), (5, 5), (4, 12)):
        cost.observe(levels, nodes, 0.001 * nodes)
    before = [cost.seconds(*size) for size in ((3, 3), (4, 16))]
    cost.scale(2.0)
    assert [cost.seconds(*size) for size in ((3, 3), (4, 16))] == pytest.approx([2 * each for each in before])
