"""Nodes of all requests compete by chances that were known before they were drawn, and the output stays the target's."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from draftwood.controllers.budget import Budget
from draftwood.controllers.estimates.node_chances import NodeChances, convex, price
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.goodput import Goodput
from draftwood.core import node_budget
from draftwood.core.competition import Correction, Price
from draftwood.core.legal_draws import Draw
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Times
from draftwood.testing.contracts import Always, check_controller, toy_round
from draftwood.testing.exact import Free, joint_error, leaves
from draftwood.testing.host_reads import HostReads, as_if_on_a_device
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, near, random_probs
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.ranked_chain import RankedChain
from draftwood.trees.static import Static
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from load_costs import LineCosts, outcome_of
from shared_budgets import chains, error_of_both, texts_of_both

ROUNDING = 1e-12
LOAD = Load(Free(), 3, 0, 10)


class Steps(Free):
    """A pass whose third token alone is dear, so that one more node is worth it only together with its child."""

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 1.0 + 0.55 * (tokens > 1)


def test_the_contract_holds() -> None:
    check_controller(Budget(Fixed(3)))
    check_controller(Budget(Goodput(3), extra=2, width=2, paying=True))


def test_more_is_drafted_than_is_verified() -> None:
    controller = Budget(Fixed(2), extra=1)
    limit = controller.plan(controller.init(3), toy_round([[1]] * 3, 4), LOAD)
    assert limit.depths == (3, 3, 3) and limit.budgets == (3, 3, 3) and limit.total == 6 and limit.shared
    plain = Budget(Fixed(0), extra=2)
    assert plain.plan(plain.init(3), toy_round([[1]] * 3, 4), LOAD).depths == (0, 0, 0)


def test_scores_are_corrected_by_drafter_position_and_text() -> None:
    tree = chains([[0.0, -1.0, -2.0, -3.0]] * 2)
    offset = torch.tensor([[[0.0, 0.0, 0.0]], [[1.0, -1.0, -1.0]]])
    found = Correction(torch.tensor([1.0]), offset).log_chances(tree, 3)
    plain = [0.0, -1.0, -2.0, -3.0]
    assert found[0].tolist() == pytest.approx(plain, abs=1e-4)
    assert found[1, 1] > -1 and found[1, 3] - found[1, 2] < -1
    assert bool((found[:, 1:] <= found[:, :-1]).all()), "chances fall along a path"


def test_what_was_often_accepted_wins_the_places() -> None:
    controller, rnd = Budget(Fixed(1), extra=2), toy_round([[1], [1]], 4)
    state = controller.init(2)
    for _ in range(60):
        controller.update(state, rnd, outcome_of(rnd, (3, 3), [3, 0], Times({"score": 0.01}, tokens=8)))
    limit = controller.plan(state, rnd, LOAD)
    kept = node_budget.selected(RankedChain(), chains([[0.0, -1.0, -2.0, -3.0]] * 2), limit)
    assert kept.sum(1).tolist() == [3, 1] and limit.total == 2
    error = state.calibration_error
    assert error is not None and error < 0.3
    controller.free(state, [0, 1])
    limit = controller.plan(state, rnd, LOAD)
    kept = node_budget.selected(RankedChain(), chains([[0.0, -1.0, -2.0, -3.0]] * 2), limit)
    assert kept.sum(1).tolist() == [2, 2], "a freed slot is forgotten"


@pytest.mark.parametrize(("node", "most"), [(0.0, 6), (0.1, 4), (0.3, 2), (0.9, 0)])
def test_as_many_nodes_are_kept_as_pay(node: float, most: int) -> None:
    tree = chains([[0.0, -0.4, -1.2, -3.0], [0.0, -0.4, -1.2, -3.0]])
    seconds = torch.tensor([1 + node * n for n in range(7)])
    limit = replace(Limit.of([3, 3], [3, 3]), price=Price(seconds, 2))
    kept = node_budget.selected(RankedChain(), tree, limit)
    assert int(kept[:, 1:].sum()) == most
    with as_if_on_a_device(), HostReads() as reads:
        again = node_budget.selected(RankedChain(), tree, limit)
    assert torch.equal(again, kept) and reads.total == 0, reads.by_name
    assert int(node_budget.selected(RankedChain(), tree, replace(limit, total=1))[:, 1:].sum()) == min(most, 1)


def test_prices_are_convex_and_never_above_the_measured_ones() -> None:
    points = [1.0, 2.0, 2.1, 2.2, 4.0, 4.1]
    line = convex(points)
    steps = [b - a for a, b in pairwise(line)]
    assert len(line) == 6 and all(a <= b + 1e-12 for a, b in zip(line, points, strict=True))
    assert steps == pytest.approx(sorted(steps)) and line[0] == 1.0 and line[-1] == 4.1
    rnd = toy_round([[1], [1]], 4)
    found = price(LineCosts(0.5, 0.1), rnd, LOAD, Limit.of([2, 2], [2, 2]))
    assert found.tokens == 2 and found.seconds.tolist() == pytest.approx([2.2, 2.7, 3.2, 3.7, 4.2])


def test_limits_pass_prices_and_corrections_on() -> None:
    correction = Correction(torch.ones(1), torch.arange(2.0).view(2, 1, 1))
    limit = replace(Limit.of([2, 3], [2, 3]), price=Price(torch.ones(6), 2), correction=correction)
    for other in (limit.take([1]), limit.at_most([1, 1], [1, 1])):
        assert other.price is limit.price and other.correction is not None
    assert limit.take([1]).correction.offset.tolist() == [[[1.0]]]  # type: ignore[union-attr]


# --- exact


@pytest.mark.parametrize(
    ("policy", "rule", "paying"),
    [
        (RankedChain(), Rejection(), False),
        (RankedChain(), Block(), True),
        (Static((2, 1)), Rejection(), True),
        (MostValuableFirst(), Rejection(), True),
        (Static((2, 1), Draw.IID), Rejection(), True),
        (RankedChain(Draw.GIVEN), Match(), True),
    ],
    ids=lambda part: type(part).__name__,
)
@pytest.mark.slow
def test_one_sequence_is_exact(policy: Any, rule: Any, paying: bool) -> None:
    p = random_probs(3, 3)
    q = near(p, 3, 5, 0.6)

    def recipe() -> Recipe:
        inner = Always(1, 1)
        controller = Budget(inner, extra=1, width=2, paying=paying)
        return Recipe(drafter=TableDrafter(q), policy=policy, verifier=rule, controller=controller)

    model = TableModel(3, p)
    found = leaves(model, recipe, width=1)
    assert joint_error(found, p, 3, 3) < ROUNDING


def priced(above: float) -> Any:
    """The error of a chain of two drawn tokens on a stair of prices: the first costs a little more than it can bring, or
    less, and the second nothing."""
    p = random_probs(3, 3)
    q = near(p, 3, 5, 0.6)
    stair = torch.tensor([1.0, *[1 + max(q((0,))) + above] * 2])

    class Kept:
        def __getattr__(self, name: str) -> Any:
            return getattr(RankedChain(), name)

        def select(self, tree: TokenTree, limit: Limit) -> torch.Tensor:
            return node_budget.selected(RankedChain(), tree, replace(limit, price=Price(stair, 1)))

    def recipe() -> Recipe:
        policy: Any = Kept()
        return Recipe(drafter=TableDrafter(q), policy=policy, verifier=Rejection(), controller=Always(2, 2))

    return joint_error(leaves(TableModel(3, p), recipe, width=1), p, 3, 3)


@pytest.mark.parametrize("above", [-0.1, 0.1])
def test_nodes_kept_one_by_one_are_exact_on_a_stair_of_prices(above: float) -> None:
    assert priced(above) < ROUNDING


def test_looking_behind_a_node_for_one_that_pays_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the best number of nodes overall. Whether the first is verified then depends on its child's score, and so
    on its own token."""

    def best(score: torch.Tensor, cost: torch.Tensor, price: Price, total: int | None) -> torch.Tensor:
        found = score.flatten().sort(descending=True, stable=True)
        used = cost.flatten()[found.indices].cumsum(0).clamp_max(len(price.seconds) - 1)
        rate = (price.tokens + found.values.exp().cumsum(0)) / price.seconds.to(score.dtype)[used]
        most = int(rate.argmax()) + 1 if float(rate.max()) > 1 / float(price.seconds[0]) else 0
        fits = torch.arange(len(rate)) < most
        return torch.zeros_like(fits).scatter(0, found.indices, fits).view_as(score)

    monkeypatch.setattr(node_budget, "_paying", best)
    assert priced(0.1) > 1e-3


def both(controller: Any, policy: Any, p: Any, q: Any) -> dict[Any, float]:
    recipe = Recipe(drafter=TableDrafter(q), policy=policy, verifier=Rejection(), controller=controller)
    return texts_of_both(recipe, p, 2)


@pytest.mark.slow
def test_two_requests_that_compete_are_exact_together() -> None:
    p = random_probs(2, 3)
    found = both(Budget(Always(1, 1), extra=1), RankedChain(), p, near(p, 2, 6, 0.8))
    assert sum(found.values()) == pytest.approx(1, abs=ROUNDING)
    assert error_of_both(found, p, 2, 3) < ROUNDING


@pytest.mark.slow
def test_ranking_by_the_drawn_tokens_own_probability_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin, and the published key: the draft's probability of the very token that is selected."""
    p = random_probs(2, 3)
    q = near(p, 2, 6, 0.8)
    expand = RankedChain.expand

    def by_own(self: Any, growth: Any, *rest: Any) -> Any:
        grown = expand(self, growth, *rest)
        score = torch.cat([grown.tree.score[:, :-1], grown.carry], dim=1)
        return replace(grown, tree=replace(grown.tree, score=score))

    monkeypatch.setattr(RankedChain, "expand", by_own)
    found = both(Budget(Always(1, 1), extra=1), RankedChain(), p, q)
    assert error_of_both(found, p, 2, 3) > 0.005


def test_nodes_are_judged_only_where_they_were_reached() -> None:
    chances, rnd = NodeChances(), toy_round([[1], [1]], 4)
    chances.learn(rnd, outcome_of(rnd, (3, 2), [1, 2], Times()))
    assert chances.drafters[0].judged == [2, 2] and sum(chances.calibration.nodes) == 4
    chances.learn(rnd, outcome_of(rnd, (0, 0), [0, 0], Times()))
    assert sum(chances.calibration.nodes) == 4
    assert Proposal.roots(rnd.roots()).tree.num_nodes == 1
