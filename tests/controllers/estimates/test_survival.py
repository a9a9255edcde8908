"""Chances of retrieved tokens follow what is accepted."""

import random

import pytest

from draftwood.controllers.estimates.survival import Survival


def test_an_estimate_is_believed_until_something_was_judged() -> None:
    survival = Survival()
    for chance in (0.01, 0.3, 0.99):
        assert survival.chance(0, chance) == pytest.approx(chance)
    assert 0 < survival.chance(0, 0.0) < 0.01 and 0.99 < survival.chance(0, 1.0) < 1


def test_estimates_that_are_too_high_are_corrected_for_new_texts_too() -> None:
    rng, survival = random.Random(0), Survival()
    for i in range(3000):
        said = rng.choice([0.5, 0.7, 0.9])
        survival.learn(i // 40, said, rng.random() < said / 2)
    for said in (0.5, 0.7, 0.9):
        assert survival.chance(1000, said) == pytest.approx(said / 2, abs=0.12)


def test_one_hard_text_moves_its_own_chances_most() -> None:
    survival = Survival()
    for _ in range(12):
        survival.learn(0, 0.6, False)
    assert survival.chance(0, 0.6) < 0.35 < 0.45 < survival.chance(1, 0.6)
    survival.free(0)
    assert survival.chance(0, 0.6) == survival.chance(1, 0.6)


def test_what_was_learned_of_a_text_fades_while_nothing_is_tried() -> None:
    survival = Survival()
    for _ in range(12):
        survival.learn(0, 0.6, False)
    before = survival.chance(0, 0.6)
    for _ in range(100):
        survival.rest(0)
    assert survival.chance(0, 0.6) > before
