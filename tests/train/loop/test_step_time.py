"""Steps that fit into minutes: slow first steps do not count, slow machines time fewer, and timing has its price."""

import threading

import pytest

from draftwood.train.loop.step_time import TIMED, WARM, time_steps


class Clock:
    """Time that passes only while a step runs."""

    def __init__(self, *costs: float) -> None:
        self.now, self.costs, self.steps = 0.0, costs, 0

    def __call__(self) -> float:
        return self.now

    def step(self, i: int) -> None:
        self.now += self.costs[min(i, len(self.costs) - 1)]
        self.steps += 1


def test_first_steps_of_new_shapes_do_not_stretch_the_estimate() -> None:
    clock = Clock(9, 1, 5, 0.1, 4, 0.1, 0.1, 3, 0.1, 0.1, 6, 0.1, 0.1, 0.1, 0.1)
    found = time_steps(clock.step, 1e4, clock=clock)
    assert found is not None and found.each == pytest.approx(0.1) and clock.steps == WARM + TIMED
    assert found.spent == pytest.approx(clock.now)
    assert found.steps(100.0) == int((100 - clock.now) / found.each), "the time for timing belongs to the minutes"


def test_where_a_step_takes_seconds_a_tenth_of_the_time_is_enough() -> None:
    clock = Clock(4.0)
    found = time_steps(clock.step, 60.0, clock=clock)
    assert found is not None and clock.steps == 2 and found.each == 4.0 and found.steps(60.0) == 13


def test_the_very_first_step_is_not_counted() -> None:
    clock = Clock(5.0, 0.1)
    found = time_steps(clock.step, 12.0, clock=clock)
    assert found is not None and clock.steps == 2 and found.each == pytest.approx(0.1) and found.steps(12.0) == 69


def test_one_step_at_least() -> None:
    found = time_steps((clock := Clock(50.0)).step, 10.0, clock=clock)
    assert found is not None and clock.steps == 1 and found.steps(10.0) == 1


def test_interrupted_timing_finds_nothing() -> None:
    until = threading.Event()
    until.set()
    assert time_steps(Clock(1.0).step, 10.0, until) is None
