"""Estimated tokens per second are corrected by what rounds really brought."""

import pytest

from draftwood.controllers.measured_rates import MeasuredRates


def test_nothing_is_corrected_before_a_round() -> None:
    assert [MeasuredRates().ratio(depth) for depth in (0, 1, 6)] == [1.0, 1.0, 1.0]


def test_rounds_that_bring_less_than_expected_lower_the_rate_of_all_depths_but_not_of_plain_rounds() -> None:
    rates = MeasuredRates()
    for _ in range(200):
        rates.learn(4, 0.6, 1.0)
    assert rates.ratio(4) < rates.ratio(2) < 0.7 and rates.ratio(0) == 1.0


def test_a_depth_has_its_own_ratio_once_it_was_tried_often() -> None:
    rates = MeasuredRates()
    for _ in range(200):
        rates.learn(2, 1.0, 1.0)
        rates.learn(6, 0.5, 1.0)
    assert rates.ratio(2) > 0.85 and rates.ratio(6) < 0.7


def test_a_single_slow_moment_counts_little() -> None:
    rates = MeasuredRates()
    for _ in range(30):
        rates.learn(0, 1.0, 1.0)
    rates.learn(0, 1.0, 1000.0)
    assert rates.ratio(0) == pytest.approx(1.0, abs=0.1)
