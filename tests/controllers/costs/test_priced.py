"""Limits that carry costs."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.controllers.costs import priced
from draftwood.controllers.costs.cost import CostModel
from draftwood.controllers.costs.priced import Priced
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


class Answers:
    """Rounds by a clock that is planted. The text can be guessed: a draft of n tokens is accepted with `hits` of them. The
    drafter makes the draft that pays most by the costs that it is told, or none."""

    def __init__(self, controller: Priced, true: dict[int, float], hits: float) -> None:
        self.controller, self.true, self.hits, self.state = controller, true, hits, controller.init(1)

    def round(self) -> tuple[int, float, float]:
        """Nodes drafted, tokens emitted, seconds."""
        rnd = toy_round([[1, 2]], 10)
        limit = self.controller.plan(self.state, rnd, Load(CostModel(), 1, 0, 2))
        cost = limit.cost_model
        assert cost is not None
        nodes = max((0, 1, 3), key=lambda n: (1 + self.hits * n) / cost.pass_seconds(1 + n)) if limit.depths[0] else 0
        accepted = round(self.hits * nodes)
        times = timed(1 + nodes, self.true[1 + nodes])
        emitted = [[0] * (1 + accepted)]
        self.controller.update(self.state, rnd, replace(empty_outcome(), seconds=times, emitted=emitted))
        return nodes, 1 + self.hits * nodes, times.total

    def answer(self, length: int) -> tuple[float, float]:
        """Tokens per pass and seconds of an answer of so many tokens."""
        tokens, seconds, passes = 0.0, 0.0, 0
        while tokens < length:
            _, emitted, took = self.round()
            tokens, seconds, passes = tokens + emitted, seconds + took, passes + 1
        return tokens / passes, seconds


QUIET = {1: 0.010, 2: 0.011, 4: 0.012}  # what rounds take
BUSY = (timed(1, 0.029), timed(2, 0.090), timed(4, 0.118))  # what was timed beside busy processes


def test_wrong_times_do_not_keep_a_short_answer_from_being_drafted() -> None:
    answers = Answers(Priced(4, 6, BUSY), QUIET, hits=1.0)
    first, second = answers.answer(64), answers.answer(64)
    assert first[0] > 2.4, "nine plain rounds, then trials show that drafts pay"
    assert second[0] == 4.0 and second[1] < 0.35 * 64 * QUIET[1]


def test_control_without_trials_wrong_times_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priced, "_FIRST", 0.0)
    monkeypatch.setattr(priced, "_LOSS", 0.0)
    controller = Priced(4, 6, BUSY)
    answers = Answers(controller, QUIET, hits=1.0)
    answers.state.allowed = 0.0
    assert answers.answer(64)[0] == 1.0 and answers.answer(640)[0] == 1.0


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_how_fast_the_machine_is_does_not_matter(scale: float) -> None:
    answers = Answers(Priced(4, 6, BUSY), {tokens: scale * s for tokens, s in QUIET.items()}, hits=1.0)
    assert answers.answer(64)[0] > 2.4


def test_times_that_were_too_good_are_given_up_after_a_few_rounds() -> None:
    true = {1: 0.010, 2: 0.024, 4: 0.050}
    answers = Answers(Priced(4, 6, (timed(1, 0.010), timed(2, 0.010), timed(4, 0.010))), true, hits=0.34)
    assert answers.answer(64)[1] < 64 * true[1] * 1.35
    assert answers.answer(640)[1] < 640 * true[1] * 1.03


def test_where_drafts_do_not_pay_trials_lose_a_few_rounds_and_then_a_small_share() -> None:
    times = tuple(timed(tokens, s) for tokens, s in ((1, 0.010), (2, 0.016), (4, 0.030)))
    answers = Answers(Priced(4, 6, times), {t.tokens: t.total for t in times}, hits=0.1)
    lost = [answers.answer(64)[1] / 0.64 - 1, answers.answer(2000)[1] / 20 - 1]
    assert 0 < lost[0] < 0.08 and 0 < lost[1] < 0.02, "there are trials, and they are few"


def test_a_time_of_dear_drafts_ends_when_they_become_cheap() -> None:
    """A busy neighbour comes and goes."""
    times = tuple(timed(tokens, s) for tokens, s in QUIET.items())
    answers = Answers(Priced(4, 6, times), dict(QUIET), hits=0.7)
    assert answers.answer(200)[0] > 2.5
    answers.true = {1: 0.010, 2: 0.040, 4: 0.100}
    assert answers.answer(1000)[0] < 1.3
    answers.true = QUIET
    answers.answer(1500)
    assert answers.answer(200)[0] > 2.5


def test_a_trial_offers_drafts_for_nothing_and_only_then() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    state, rnd, load = controller.init(1), toy_round([[1, 2]], 10), Load(CostModel(), 1, 0, 2)
    model = controller.plan(state, rnd, load).cost_model
    assert model is state.model and model is not None
    updated(controller, state, 1, 0.010, rounds=8)
    free = controller.plan(state, rnd, load).cost_model
    assert free is not None and free.pass_seconds(8) == free.pass_seconds(1) == pytest.approx(0.010)
    assert free.draft_seconds(4) == 0 and free.rest_seconds() == model.rest_seconds()
    assert controller.plan(state, rnd, load).cost_model is free, "one object, so that it is looked up once"
    two = controller.plan(state, toy_round([[1, 2], [3]], 10), load).cost_model
    assert two is not None and two.pass_seconds(9) == two.pass_seconds(2) > two.pass_seconds(1)
    free.observe(timed(1, 5.0))
    updated(controller, state, 4, 0.016, rounds=3)
    assert controller.plan(state, rnd, load).cost_model is model, "three drafts are a trial"


def test_rounds_that_all_draft_are_interrupted_once_to_set_the_unit() -> None:
    controller = Priced(4, 6, (timed(1, 0.010), timed(4, 0.016)))
    state, rnd, load = controller.init(1), toy_round([[1, 2]], 10), Load(CostModel(), 1, 0, 2)
    updated(controller, state, 4, 0.160, rounds=4)
    assert ratio(state) == pytest.approx(1.6), "whether the machine or the draft was slow is not known"
    assert controller.plan(state, rnd, replace(load, prompt_tokens=5)).depths == (4,)
    assert controller.plan(state, rnd, load).depths == (0,)
    updated(controller, state, 1, 0.040)
    assert controller.plan(state, rnd, load).depths == (4,) and state.unit == pytest.approx(4)


def test_what_took_longer_than_expected_makes_drafts_of_all_sizes_dearer() -> None:
    rounds = (timed(1, 0.010), timed(4, 0.016), timed(8, 0.020))
    controller = Priced(4, 6, rounds)
    state = controller.init(1)
    updated(controller, state, 1, 0.010)
    before = state.model.pass_seconds(8)
    updated(controller, state, 4, 0.030, rounds=3)
    assert state.model.pass_seconds(8) > 1.2 * before and state.model.pass_seconds(1) == pytest.approx(0.010)


def test_where_only_copies_are_drafted_a_trial_waits_for_the_model() -> None:
    def both(nodes: int, passes: int) -> Times:
        return Times({"score": 0.01, "propose": 0.02 * passes}, passes, nodes, tokens=1 + nodes)

    def done(times: Times) -> None:
        controller.update(state, rnd, replace(empty_outcome(), seconds=times, emitted=[[0] * (1 + times.draft_nodes)]))

    controller = Priced(4, 6, (both(0, 0), both(4, 4)))
    state, rnd, load = controller.init(1), toy_round([[1, 2]], 10), Load(CostModel(), 1, 0, 2)
    for _ in range(4):  # two plain rounds, then a copy
        for each in (both(0, 0), both(0, 0), both(4, 0)):
            done(each)
    assert isinstance(controller.plan(state, rnd, load).cost_model, priced.AsIfFree)
    for _ in range(5):
        done(both(4, 0))
    assert isinstance(controller.plan(state, rnd, load).cost_model, priced.AsIfFree), "copies say nothing of the model"
    dear = state.model.draft_seconds(4)
    for _ in range(3):
        done(replace(both(4, 4), seconds={"score": 0.01, "propose": 0.004}))
    assert controller.plan(state, rnd, load).cost_model is state.model
    assert state.model.draft_seconds(4) < 0.5 * dear
