"""The cost model learns what passes cost here, from the passes themselves."""

import random

import pytest

from draftwood.controllers.costs.cost import CostModel
from draftwood.core.verdict import Times


def observe(model: CostModel, tokens: int, seconds: float, context: int = 0, passes: int = 0) -> None:
    model.observe(
        Times({"score": seconds, "propose": 0.002 * passes}, tokens=tokens, context=context, draft_passes=passes)
    )


def test_measured_sizes_are_known_and_others_lie_between() -> None:
    model, rng = CostModel(), random.Random(0)
    true = {1: 0.030, 4: 0.060, 16: 0.100, 64: 0.300}
    for _ in range(300):
        tokens = rng.choice(list(true))
        observe(model, tokens, true[tokens] * rng.uniform(0.9, 1.1))
    for tokens, seconds in true.items():
        assert model.pass_seconds(tokens) == pytest.approx(seconds, rel=0.1)
    assert 0.060 < model.pass_seconds(8) < 0.100
    assert model.pass_seconds(256) > 2 * model.pass_seconds(64), "unseen large passes are assumed dear"


def test_a_busy_moment_does_not_spoil_the_price() -> None:
    model = CostModel()
    for _ in range(50):
        observe(model, 1, 0.03)
    observe(model, 1, 3.0)
    assert model.pass_seconds(1) < 0.04


def test_estimates_follow_the_machine() -> None:
    model = CostModel()
    for _ in range(50):
        observe(model, 1, 0.03)
    for _ in range(200):
        observe(model, 1, 0.06)
    assert model.pass_seconds(1) == pytest.approx(0.06, rel=0.05)


def test_long_contexts_cost_more() -> None:
    model, rng = CostModel(), random.Random(1)
    for _ in range(2000):
        context = rng.choice([0, 2000])
        observe(model, 1, 0.03 + 1e-5 * context, context)
    assert model.pass_seconds(1, 2000) - model.pass_seconds(1, 0) == pytest.approx(0.02, rel=0.25)


def test_an_entry_costs_more_the_more_tokens_attend_to_it() -> None:
    """And what wide passes pay for it is not charged to narrow ones, in whatever order they were seen."""
    model, rng = CostModel(forget=1.0), random.Random(2)
    for tokens in (1, 16):
        for _ in range(400):
            context = rng.randrange(1000)
            observe(model, tokens, (0.005 + 1e-6 * context) * (1 if tokens == 1 else 4), context)
    for context in (100, 900):
        assert model.pass_seconds(1, context) == pytest.approx(0.005 + 1e-6 * context, rel=0.02)
        assert model.pass_seconds(16, context) == pytest.approx(0.020 + 4e-6 * context, rel=0.02)


def test_few_contexts_say_nothing_about_others() -> None:
    model, rng = CostModel(), random.Random(3)
    for context in range(40):
        observe(model, 1, 0.005 * rng.uniform(0.9, 1.2), context)
    assert model.pass_seconds(1, 2000) < 0.012


def test_draft_passes_are_priced_apart() -> None:
    model = CostModel()
    for _ in range(10):
        observe(model, 4, 0.05, passes=3)
    assert model.draft_seconds(5) == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), 1e308, -1.0])
def test_clock_that_is_wrong_once_is_not_believed(wrong: float) -> None:
    model = CostModel()
    for seconds in (0.03, wrong, wrong, 0.03):
        model.observe(Times({"score": seconds, "propose": seconds}, tokens=1, context=10, draft_passes=1))
    assert model.pass_seconds(1, 10) == pytest.approx(0.03) and model.draft_seconds(1) == pytest.approx(0.03)


def test_one_round_corrects_all_larger_passes_and_all_drafts_alike() -> None:
    model = CostModel()
    for tokens, seconds in ((1, 0.01), (4, 0.05), (16, 0.09)):
        observe(model, tokens, seconds, passes=tokens - 1)
    draft = model.draft_seconds(3)
    shown = Times({"score": 0.03, "propose": 0.5 * draft}, tokens=4, draft_passes=3, draft_nodes=3)
    model.correct(shown, plain=1, share=0.5)
    assert model.pass_seconds(1) == pytest.approx(0.01), "plain passes are what the others are compared with"
    assert model.pass_seconds(4) == pytest.approx(0.04) and model.pass_seconds(16) == pytest.approx(0.07)
    assert model.draft_seconds(3) == pytest.approx(0.75 * draft)


def test_what_seemed_to_cost_nothing_can_become_dear_and_back() -> None:
    model = CostModel()
    for tokens in (1, 4, 16):
        observe(model, tokens, 0.01)
    for count in range(3, 8):
        model.correct(Times({"score": 0.04}, tokens=4), plain=1, share=1 / count)
    assert model.pass_seconds(4) > 0.025 and model.pass_seconds(16) > 0.025
    for count in range(3, 40):
        model.correct(Times({"score": 0.01}, tokens=4), plain=1, share=1 / count)
    assert model.pass_seconds(4) < 0.012
