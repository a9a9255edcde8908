"""How many cores other processes use is known from the counters of the system."""

import os
import subprocess
import sys
from pathlib import Path
from time import process_time

import pytest

from draftwood.sizing import cpu_use
from draftwood.sizing.cpu_use import BUSY, CpuUse, busy_seconds, cpu_seconds, own_cores, taken, together

linux = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="/proc is read")


@linux
def test_cpu_time_grows_with_work_and_ends_with_the_process() -> None:
    before = cpu_seconds(os.getpid())
    end = process_time() + 0.05  # its own time: others may hold the cores
    while process_time() < end:
        pass
    after = cpu_seconds(os.getpid())
    assert before is not None and after is not None and after > before
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert cpu_seconds(child.pid) is None


@linux
def test_processes_are_counted_together_while_one_is_alive() -> None:
    own = cpu_seconds(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    found = together([os.getpid(), child.pid])
    assert own is not None and found is not None and found >= own
    assert together([child.pid]) is None


@linux
def test_cores_are_busy_for_as_long_as_all_processes_were_together() -> None:
    each = [busy_seconds(frozenset({core})) for core in own_cores()]
    both = busy_seconds()
    assert both is not None and 0 < sum(one or 0.0 for one in each) <= both + 1e-6  # sums round
    assert busy_seconds(frozenset({10**6})) is None, "there is no such core"


def use_of(monkeypatch: pytest.MonkeyPatch, seconds: float, busy: float, own: float) -> float | None:
    """By planted counters: in so many seconds all processes worked `busy` of them, this one `own`."""
    times, all_, mine = iter((10.0, 10.0 + seconds)), iter((50.0, 50.0 + busy)), iter((3.0, 3.0 + own))
    monkeypatch.setattr(cpu_use, "monotonic", lambda: next(times))
    monkeypatch.setattr(cpu_use, "busy_seconds", lambda: next(all_))
    monkeypatch.setattr(cpu_use, "together", lambda pids: next(mine))
    return CpuUse().foreign()


def test_cores_of_others_are_those_in_use_without_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert use_of(monkeypatch, 2.0, 4.0, 1.0) == pytest.approx(1.5)
    assert use_of(monkeypatch, 2.0, 1.0, 1.5) == 0.0, "counters are rounded"


def test_where_there_are_no_counters_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_use, "busy_seconds", lambda: None)
    assert CpuUse().foreign() is None and taken(None, 2) is None


@pytest.mark.parametrize(
    ("foreign", "threads", "cores", "found"),
    [
        (1.0, 2, 2, 1.0),  # two threads on two cores, of which others use one
        (0.0, 2, 2, 0.0),
        (20.0, 2, 64, 0.0),  # enough is left
        (63.0, 2, 64, 1.0),
        (0.5, 4, 2, 0.5),
    ],
)
def test_others_disturb_where_they_take_cores_that_are_needed(
    foreign: float, threads: int, cores: int, found: float
) -> None:
    assert taken(foreign, threads, cores) == pytest.approx(found)


@linux
@pytest.mark.slow
def test_a_neighbour_that_works_all_the_time_is_noticed() -> None:
    """The twin of what is planted above: real processes, on every core."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in own_cores()]
    try:
        use, end = CpuUse(), process_time() + 0.2
        while process_time() < end:
            pass
        found = taken(use.foreign(), len(own_cores()))
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert found is not None and found > BUSY
