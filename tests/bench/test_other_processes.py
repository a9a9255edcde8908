import math
from collections.abc import Sequence

import pytest

from draftwood.bench import other_processes


class Clock:
    """Time that passes only while somebody waits, and processes that work until `rest` and are gone at `end`."""

    def __init__(self, rest: float, end: float = math.inf) -> None:
        self.now, self.rest, self.end = 0.0, rest, end

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def spent(self, pids: Sequence[int]) -> float | None:
        return None if self.now >= self.end else min(self.now, self.rest)


def settled(clock: Clock) -> float:
    other_processes.settle([7], patience=0.6, spent=clock.spent, clock=lambda: clock.now, wait=clock.wait)
    return clock.now


def test_settling_waits_until_processes_are_idle_or_patience_ends():
    first = other_processes.PAUSE + other_processes.TICK
    assert settled(Clock(rest=0.0)) == pytest.approx(first), "one look at those who sleep"
    assert 0.3 < settled(Clock(rest=0.3)) <= 0.3 + 2 * other_processes.TICK
    assert 0.6 <= settled(Clock(rest=math.inf)) <= other_processes.PAUSE + 0.6 + other_processes.TICK
    assert settled(Clock(rest=math.inf, end=0.0)) == pytest.approx(other_processes.PAUSE), "nobody is there"
    assert settled(Clock(rest=math.inf, end=0.2)) <= 0.2 + other_processes.TICK, "who ended has come to rest"


def test_a_look_reports_the_load_and_the_busiest_processes():
    seen = other_processes.look(0.05)
    assert len(seen["load"]) in (0, 3) and isinstance(seen["busiest"], list)


def test_a_busy_machine_gives_a_warning_and_a_quiet_one_none():
    assert other_processes.warning({"foreign_cores": 0.0, "busiest": []}) is None
    said = other_processes.warning({"foreign_cores": 1.2, "busiest": [{"name": "compiler", "cores": 1.1}]})
    assert said is not None and "WARNING: 1.2" in said and "compiler (1.1)" in said
