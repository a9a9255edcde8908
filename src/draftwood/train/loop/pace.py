"""How long a step takes, found by doing a few: the first ones of each shape are slow, so the fastest half decides."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

WARM, TIMED = 3, 12  # steps that do not count, steps that do
SHARE = 0.1  # of the time there is; where a step takes seconds, fewer of them must do


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one step, and seconds it took to find out."""

    each: float
    spent: float

    def steps(self, seconds: float) -> int:
        """Steps that fit into `seconds`, of which finding the pace has used some."""
        return max(1, int((seconds - self.spent) / max(self.each, 1e-9)))


def find_pace(
    step: Callable[[int], None],
    seconds: float,
    until: threading.Event | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Pace | None:
    """Do steps and time them; `step` returns when its work is done. None if `until` was set meanwhile."""
    times: list[float] = []
    started = clock()
    for i in range(WARM + TIMED):
        if until is not None and until.is_set():
            return None
        before = clock()
        step(i)
        times.append(clock() - before)
        # The very first step loads libraries and says nothing about the others, unless it takes half of the time.
        if clock() - started > (SHARE if i else 0.5) * seconds:
            break
    timed = sorted(times[WARM:]) or [min(times)]
    return Pace(median(timed[: (len(timed) + 1) // 2]), clock() - started)
