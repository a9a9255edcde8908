"""The time of a training step, measured on a few. The first steps of each shape are slow, so the faster half counts."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

WARM, TIMED = 3, 12  # warm-up steps, timed steps
SHARE = 0.1  # of the available time; slow steps are timed fewer times


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step, and seconds spent on measuring it."""

    each: float
    spent: float

    def steps(self, seconds: float) -> int:
        """Steps that fit into `seconds`, of which measuring has used some."""
        return max(1, int((seconds - self.spent) / max(self.each, 1e-9)))


def time_steps(
    step: Callable[[int], None],
    seconds: float,
    until: threading.Event | None = None,
    clock: Callable[[], float] = perf_counter,
) -> StepTime | None:
    """Runs and times steps; `step` returns when its work is done. None if `until` was set meanwhile."""
    times: list[float] = []
    started = clock()
    for i in range(WARM + TIMED):
        if until is not None and until.is_set():
            return None
        before = clock()
        step(i)
        times.append(clock() - before)
        # The first step loads libraries, so it alone ends the measurement only if it took half of the time.
        if clock() - started > (SHARE if i else 0.5) * seconds:
            break
    timed = sorted(times[WARM:]) or [min(times)]
    return StepTime(median(timed[: (len(timed) + 1) // 2]), clock() - started)
