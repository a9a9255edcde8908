"""Limits that carry costs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.controllers.cost import CostModel
from draftwood.controllers.priced import Priced
from draftwood.core.limit import Load
from draftwood.core.proposal import Proposal
from draftwood.core.verdict import Outcome, Times, Verdict
from draftwood.errors import OptionError
from draftwood.testing.contracts import check_controller, toy_round


def timed(tokens: int, seconds: float) -> Times:
    return Times({"score": seconds}, tokens=tokens, draft_nodes=tokens - 1)


def empty_outcome() -> Outcome:
    roots = Proposal.roots(torch.tensor([2]))
    zero = torch.zeros(1, dtype=torch.int64)
    return Outcome(roots, Verdict(zero[:, None], zero, zero), zero[:, None], Times())


def test_contract() -> None:
    check_controller(Priced(3, 5))


def test_costs_begin_with_timed_rounds_and_stay_with_every_cut_of_the_limit() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    rnd = toy_round([[1, 2], [3]], 10)
    limit = controller.plan(controller.init(2), rnd, Load(CostModel(), 2, 0, 3))
    for each in (limit, limit.take([1]), limit.at_most([1, 2], [3, 3])):
        assert each.cost_model is not None
        assert each.cost_model.pass_seconds(1) == pytest.approx(0.010)
        assert each.cost_model.pass_seconds(2) == pytest.approx(0.013)


def test_sizes_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError):
        Priced(-1, 4)


def updated(controller: Priced, state: Any, tokens: int, seconds: float, rounds: int = 1) -> None:
    rnd = toy_round([[1, 2]], 10)
    outcome = replace(empty_outcome(), seconds=timed(tokens, seconds))
    for _ in range(rounds):
        controller.update(state, rnd, outcome)


def ratio(state: Any) -> float:
    return state.model.pass_seconds(4) / state.model.pass_seconds(1)


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    state = controller.init(1)
    updated(controller, state, 1, 0.030, rounds=200)  # plain rounds alone, three times as slow
    assert ratio(state) == pytest.approx(1.6, rel=0.1)


def test_passes_that_turn_out_cheaper_than_timed_become_cheaper() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    state = controller.init(1)
    for _ in range(200):
        updated(controller, state, 1, 0.010)
        updated(controller, state, 4, 0.012)
    assert ratio(state) == pytest.approx(1.2, rel=0.1)


def test_clocks_that_are_wrong_are_not_believed() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    state = controller.init(1)
    for seconds in (0.0, -1.0, 1e9, float("nan")):
        updated(controller, state, 1, seconds)
    assert ratio(state) == pytest.approx(1.6)


def test_drafts_that_looked_too_dear_become_as_cheap_as_timed_while_none_is_made() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    state = controller.init(1)
    updated(controller, state, 4, 0.064, rounds=60)
    assert ratio(state) > 3
    updated(controller, state, 1, 0.010, rounds=300)
    assert ratio(state) == pytest.approx(1.6, rel=0.1)


def test_where_trials_fail_again_and_again_the_next_one_comes_later() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    state = controller.init(1)
    waits: list[int] = []
    for _ in range(4):  # a trial of five rounds, too dear again; then plain rounds until drafts look cheaper
        updated(controller, state, 4, 0.064, rounds=5)
        before, plain = ratio(state), 0
        while ratio(state) >= before and plain < 2000:
            updated(controller, state, 1, 0.010, rounds=1)
            plain += 1
        waits.append(plain)
        updated(controller, state, 1, 0.010, rounds=100)
    assert waits == sorted(waits) and waits[-1] >= 4 * waits[0], waits
    updated(controller, state, 4, 0.016, rounds=20)  # and now they pay
    assert state.drafted >= 16
    updated(controller, state, 1, 0.010, rounds=600)
    assert state.patience == 8
