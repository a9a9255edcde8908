"""A prediction from terms: right where the machine is what it was, wrong by the term that changed, and it says which."""

import pytest

from draftwood.bench.statistics import Ratio
from draftwood.bench.study.predict import CLOSE, Forecast, Pair, Spent, estimated, fitted, observed
from draftwood.core.verdict import Times


def spent(
    score: float, *, nodes: int = 1, draft: float = 0.0, passes: int = 0, rest: float = 1.0, emitted: int = 1
) -> Spent:
    times = Times({"propose": draft, "score": score, "verify": 0.5}, draft_passes=passes, tokens=nodes)
    return Spent(times, score + draft + 0.5 + rest, emitted)


PLAIN = [spent(10.0)] * 20
RECIPE = [spent(20.0, nodes=8, draft=4.0, passes=5, rest=1.5, emitted=n) for n in (1, 3, 5) * 10]


def forecast(plain: list[Spent], recipe: list[Spent]) -> Forecast:
    """Estimates of PLAIN and RECIPE, held against other rounds."""
    cost_model = fitted([*PLAIN, *RECIPE])
    measured = Pair(observed(plain), observed(recipe))
    predicted = Pair(estimated(PLAIN, plain, cost_model), estimated(RECIPE, recipe, cost_model))
    return Forecast(predicted, measured, Ratio(measured.speed_up, None, None, 2))


def test_the_terms_of_a_round_add_up_to_the_clock():
    found = observed(RECIPE)
    assert found.total == pytest.approx(sum(r.wall for r in RECIPE) / len(RECIPE))
    assert (found.nodes, found.tokens, found.score, found.draft, found.rest) == pytest.approx((8, 3, 20, 4, 1.5))


def test_the_speed_up_is_what_the_formula_says():
    f = forecast(PLAIN, RECIPE)
    assert f.measured.speed_up == pytest.approx(3 * 11.5 / 26)
    assert f.gap == pytest.approx(1, abs=0.01) and f.close


@pytest.mark.parametrize(
    ("plain", "recipe", "blamed"),
    [
        ([spent(14.0)] * 20, RECIPE, "plain target pass"),
        ([spent(10.0, rest=6.0)] * 20, RECIPE, "plain verify and rest"),
        (PLAIN, [spent(30.0, nodes=8, draft=4.0, passes=5, rest=1.5, emitted=3)] * 20, "target pass"),
        (PLAIN, [spent(20.0, nodes=8, draft=14.0, passes=5, rest=1.5, emitted=3)] * 20, "draft"),
        (PLAIN, [spent(20.0, nodes=8, draft=4.0, passes=5, rest=9.0, emitted=3)] * 20, "rest"),
        (PLAIN, [spent(20.0, nodes=8, draft=4.0, passes=5, rest=1.5, emitted=2)] * 20, "tokens per pass"),
    ],
)
def test_the_term_that_changed_has_the_largest_error(plain: list[Spent], recipe: list[Spent], blamed: str):
    f = forecast(plain, recipe)
    assert not f.close and abs(f.gap - 1) > CLOSE
    assert next(iter(f.errors())) == blamed
    assert f.errors()[blamed] == pytest.approx(f.gap, rel=0.02)  # it alone explains the gap


def test_with_the_measured_acceptance_only_the_estimates_are_left():
    f = forecast(PLAIN, [spent(20.0, nodes=8, draft=4.0, passes=5, rest=1.5, emitted=2)] * 20)
    assert f.estimates_only == pytest.approx(f.ratio.value, rel=0.02)


def test_passes_are_estimated_by_their_size_and_not_by_their_own_times():
    """Those of the others, which are known beforehand; their times are not."""
    cost_model = fitted([*PLAIN, *RECIPE])
    slow = [spent(99.0, nodes=8, draft=44.0, passes=5)]
    found = estimated(RECIPE, slow, cost_model)
    assert (found.score, found.draft) == pytest.approx((20.0, 4.0), rel=0.02)
    assert estimated(RECIPE, PLAIN, cost_model).score == pytest.approx(10.0, rel=0.02)


def test_a_drafter_without_passes_keeps_its_seconds():
    lookups = [spent(20.0, nodes=8, draft=0.25)] * 5
    assert estimated(lookups, lookups, fitted(lookups)).draft == pytest.approx(0.25)
