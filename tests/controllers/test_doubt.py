"""A drafter whose drafts fail although they should not is left alone, and tried again ever more rarely."""

import random

from draftwood.controllers.doubt import AGAIN, IMPROBABLE, Doubt


def failures(doubt: Doubt, chance: float, slot: int = 0) -> int:
    """Drafts that fail before the drafter pauses."""
    for count in range(1, 1000):
        doubt.learn(slot, chance, False)
        if doubt.pauses(slot):
            return count
    raise AssertionError("it never pauses")


def pause(doubt: Doubt, slot: int = 0) -> int:
    """Rounds until it may draft again."""
    for count in range(1000):
        if not doubt.pauses(slot):
            return count
        doubt.rest(slot)
    raise AssertionError("it never ends")


def test_a_run_of_failures_that_is_too_improbable_is_a_pause() -> None:
    assert failures(Doubt(), 0.8) == 4, "0.2 ** 4 < 0.005 < 0.2 ** 3"
    assert failures(Doubt(), 0.5) == 8
    assert failures(Doubt(), 1.0) == 2, "nothing is surer than 0.95"


def test_an_improbable_draft_may_fail_as_often_as_it_likes() -> None:
    doubt = Doubt()
    for _ in range(50):
        doubt.learn(0, 0.05, False)
    assert not doubt.pauses(0)


def test_each_failure_behind_a_pause_doubles_it_and_a_success_ends_the_doubt() -> None:
    doubt = Doubt()
    failures(doubt, 0.9)
    assert [pause(doubt), doubt.learn(0, 0.9, False), pause(doubt), doubt.learn(0, 0.1, False), pause(doubt)] == [
        24, None, 48, None, 96,
    ]  # fmt: skip
    doubt.learn(0, 0.9, True)
    assert failures(doubt, 0.8) == 4


def test_slots_are_apart_and_a_text_behind_one_that_ended_in_doubt_is_trusted_less() -> None:
    doubt = Doubt()
    failures(doubt, 0.8)
    assert not doubt.pauses(1)
    doubt.free(0)
    assert failures(doubt, 0.8) == 2, f"{AGAIN} * 0.2 ** 2 < {IMPROBABLE}"
    pause(doubt)
    doubt.learn(0, 0.8, True)
    doubt.free(0)
    assert failures(doubt, 0.8) == 4


def test_estimates_that_are_right_are_hardly_ever_doubted() -> None:
    """The twin: estimates that are twice too high are."""
    rng, counts = random.Random(0), []
    for true in (0.8, 0.4):
        doubt, pauses = Doubt(), 0
        for _ in range(2000):
            doubt.learn(0, 0.8, rng.random() < true)
            if doubt.pauses(0):
                pauses += 1
                pause(doubt)
        counts.append(pauses)
    assert counts[0] < 10 and counts[1] > 100
