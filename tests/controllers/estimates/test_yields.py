"""Running means of what chains bring."""

import pytest

from draftwood.controllers.estimates.yields import Yield, Yields


def test_a_new_text_begins_with_the_mean_of_all_and_that_with_the_prior() -> None:
    yields = Yields(Yield(1.0, 2.0, 2.0))
    assert yields.expected(0) == pytest.approx((1.0, 2.0, 2.0))
    for _ in range(500):
        yields.learn(0, Yield(3, 4, 4))
    accepted, levels, _ = yields.expected(1)
    assert 2.5 < accepted < 3 and 3.5 < levels < 4


def test_a_text_follows_its_own_drafts_first() -> None:
    yields = Yields(Yield(1.0, 2.0, 2.0))
    for _ in range(20):
        yields.learn(0, Yield(0, 1, 1))
    assert yields.expected(0)[0] < 0.5 < yields.expected(1)[0]
    yields.free(0)
    assert yields.expected(0) == yields.expected(1)


def test_what_is_known_fades_while_nothing_is_drafted() -> None:
    yields = Yields(Yield(1.0, 2.0, 2.0))
    for _ in range(50):
        yields.learn(0, Yield(0, 1, 1))
    before = yields.expected(0)[0]
    for _ in range(2000):
        yields.rest(0)
    assert before < 0.3 and yields.expected(0)[0] > 0.7, "so that the drafter is tried again"
