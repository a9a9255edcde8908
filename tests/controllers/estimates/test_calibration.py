"""The calibration error is the distance between what was said and what came true."""

import random

import pytest

from draftwood.controllers.estimates.calibration import Calibration
from draftwood.controllers.estimates.survival import Survival


def test_true_chances_have_no_error_and_wrong_ones_have_their_distance() -> None:
    true, wrong = Calibration(), Calibration()
    assert true.error is None
    for i in range(1000):
        true.learn(0.25, i % 4 == 0)
        wrong.learn(0.75, i % 4 == 0)
    assert true.error == pytest.approx(0.0) and wrong.error == pytest.approx(0.5)
    true.add(wrong)
    assert true.error == pytest.approx(0.25) and sum(true.nodes) == 2000


def test_chances_by_position_become_calibrated() -> None:
    rng, survival = random.Random(3), Survival(follow=0.05)
    chances = (0.8, 0.5, 0.2)
    for i in range(4000):
        for position, chance in enumerate(chances):
            survival.learn(i // 50, 0.5, rng.random() < chance, position)
    for position, chance in enumerate(chances):
        assert survival.chance(9999, 0.5, position) == pytest.approx(chance, abs=0.08)
    assert survival.chance(9999, 0.5, 7) == survival.chance(9999, 0.5, 2), "deeper ones are as the last"
    error = survival.calibration.error
    assert error is not None and error < 0.05


def test_without_positions_they_are_not() -> None:
    """The twin: one offset for all positions."""
    rng, survival = random.Random(3), Survival(follow=0.0)
    for i in range(4000):
        for chance in (0.8, 0.2):
            survival.learn(i // 50, 0.5, rng.random() < chance)
    assert survival.chance(9999, 0.5) == pytest.approx(0.5, abs=0.1)
