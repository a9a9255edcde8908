"""Times of a round, where an accelerator works while the host goes on."""

from dataclasses import dataclass, field

import pytest

from draftwood.engine import clock as module
from draftwood.engine.clock import Clock


@dataclass
class Now:
    """Seconds of a host and milliseconds of a device, set by hand."""

    host: float = 0.0
    device: float = 0.0
    made: list["Moment"] = field(default_factory=list["Moment"])

    def mark(self) -> "Moment":
        self.made.append(Moment(self))
        return self.made[-1]


@dataclass
class Moment:
    now: Now
    at: float = -1.0

    def record(self) -> None:
        self.at = self.now.device

    def elapsed_time(self, end_event: "Moment") -> float:
        return end_event.at - self.at


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    made = Now()
    monkeypatch.setattr(module, "perf_counter", lambda: made.host)
    return made


def timed(now: Now, clock: Clock) -> dict[str, float]:
    """A round: the host enqueues a draft and a pass in 1 ms each; they take 2 and 5 ms of the device; the read waits."""
    for part, host, device in (
        ("plan", 0.001, 0.0),
        ("propose", 0.001, 2.0),
        ("score", 0.001, 5.0),
        ("verify", 0.006, 0.5),
    ):
        now.host += host
        now.device += device
        clock.mark(part)
    now.host += 0.001
    clock.mark("emit")
    clock.settle()
    return {part: round(1000 * seconds, 3) for part, seconds in clock.times.seconds.items()}


def test_what_the_host_waited_for_belongs_to_the_parts_whose_work_it_was(now: Now) -> None:
    found = timed(now, Clock(now.mark))
    assert found == {"plan": 1, "propose": 2, "score": 5, "verify": 1, "emit": 1}
    assert sum(found.values()) == 10, "the time of the round"


def test_the_hosts_own_marks_alone_would_call_the_pass_free(now: Now) -> None:
    """The twin: what was read before there were marks of the device."""
    assert timed(now, Clock()) == {"plan": 1, "propose": 1, "score": 1, "verify": 6, "emit": 1}


def test_no_mark_is_made_behind_the_read(now: Now) -> None:
    timed(now, Clock(now.mark))
    assert len(now.made) == 3, "behind plan, propose and score; later ones might not be reached yet"


def test_the_sum_stays_the_time_of_the_round(now: Now) -> None:
    """A device that was late with other work."""
    clock = Clock(now.mark)
    for part, host, device in (
        ("plan", 0.001, 0.0),
        ("propose", 0.001, 50.0),
        ("score", 0.001, 5.0),
        ("verify", 0.006, 0),
    ):
        now.host, now.device = now.host + host, now.device + device
        clock.mark(part)
    clock.settle()
    assert clock.times.total == pytest.approx(0.009) and clock.times["verify"] == pytest.approx(0.0)


def test_a_round_that_is_not_read_is_left_as_it_is(now: Now) -> None:
    clock = Clock(now.mark)
    clock.mark("plan")
    clock.settle()
    assert clock.times.seconds == {"plan": 0.0}
