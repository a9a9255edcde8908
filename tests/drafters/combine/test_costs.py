"""Nodes are kept as far as each one's chance is worth its time; a round teaches how likely such nodes are."""

import pytest

from draftwood.controllers.costs.cost import CostModel
from draftwood.controllers.estimates.survival import Survival
from draftwood.core.verdict import Times
from draftwood.drafters.combine.costs import REFRESH, RoundSeconds, judge, paying_nodes
from draftwood.drafters.retrieval.retrieved import NOTHING, Retrieved
from draftwood.testing.contracts import toy_round

CHAIN = Retrieved([5, 6, 7], [0, 1, 2], [-0.1, -0.2, -3.0])


@pytest.mark.parametrize(("token", "kept"), [(0.0, 3), (0.3, 2), (2.0, 0)])
def test_as_many_nodes_are_kept_as_pay(token: float, kept: int) -> None:
    seconds = [1 + token * n for n in range(4)]
    found, rate = paying_nodes(CHAIN, Survival(), 0, seconds, 1.0)
    assert len(found.tokens) == kept
    assert (rate > 1.0) == bool(kept) and (kept or found is NOTHING)


def test_only_children_of_accepted_nodes_are_judged() -> None:
    for emitted, judged in (([9], 1), ([5, 9], 2), ([5, 6, 7, 8], 3)):
        survival = Survival()
        judge(survival, 0, CHAIN, emitted)
        assert survival.seen == judged
    lucky, unlucky = Survival(), Survival()
    judge(lucky, 0, CHAIN, [5, 6])
    judge(unlucky, 0, CHAIN, [9])
    assert lucky.chance(0, 0.5) > unlucky.chance(0, 0.5)


def test_costs_are_looked_up_now_and_then_and_at_once_where_others_are_told() -> None:
    one, other, rnd = CostModel(), CostModel(), toy_round([[1, 2]], 10)
    one.observe(Times({"score": 0.01}, tokens=1))
    other.observe(Times({"score": 0.02}, tokens=1))
    costs = RoundSeconds()
    assert costs.look_up(one, rnd, 2) and costs.seconds[0] == pytest.approx(0.01)
    assert [costs.look_up(one, rnd, 2) for _ in range(REFRESH)] == [False] * (REFRESH - 1) + [True]
    assert costs.look_up(other, rnd, 2) and costs.seconds[0] == pytest.approx(0.02)
    assert costs.look_up(one, toy_round([[1, 2], [3]], 10), 2), "another batch"
    assert costs.look_up(one, toy_round([[1, 2], [3]], 10), 5), "larger drafts"
