"""CPU use of this and other processes: whether what is being timed has the cores to itself.

Read from /proc, for the cores that this process may use; elsewhere nothing is known.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic

BUSY = 0.3  # cores used by other processes from which on times are not valid


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and its threads so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def together(pids: Iterable[int]) -> float | None:
    """CPU time of all these processes so far; None if none of them is alive."""
    times = [t for t in map(cpu_seconds, pids) if t is not None]
    return sum(times) if times else None


def own_cores() -> frozenset[int]:
    """The cores that this process may use."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return frozenset(range(os.cpu_count() or 1))


def busy_seconds(cores: frozenset[int] | None = None) -> float | None:
    """CPU seconds of all processes on these cores so far, including time a hypervisor took; None: on this process's."""
    names = {f"cpu{core}" for core in (own_cores() if cores is None else cores)}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        counts = [map(int, words[1:9]) for words in lines if words and words[0] in names]
        ticks = sum(sum((*each[:3], *each[5:8])) for each in map(tuple, counts))  # without idle and iowait
    except (OSError, ValueError):
        return None
    return ticks / os.sysconf("SC_CLK_TCK") if counts else None


class CpuUse:
    """How many cores processes other than this one, and than `pids`, use from now on."""

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self.pids = [os.getpid(), *pids]
        self._start = (monotonic(), busy_seconds(), together(self.pids))

    @property
    def seconds(self) -> float:
        return monotonic() - self._start[0]

    def foreign(self) -> float | None:
        """Cores on average so far; None where it cannot be known."""
        then, busy, own = self._start
        seconds, now, mine = monotonic() - then, busy_seconds(), together(self.pids)
        if busy is None or own is None or now is None or mine is None or seconds <= 0:
            return None
        return max(0.0, ((now - busy) - (mine - own)) / seconds)


def taken(foreign: float | None, threads: int, cores: int | None = None) -> float | None:
    """Of the cores that so many threads of this process need, those that others used. `foreign`: cores that others used."""
    have = len(own_cores()) if cores is None else cores
    return None if foreign is None else max(0.0, foreign - max(have - threads, 0))
