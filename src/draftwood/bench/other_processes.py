"""The machine under a measurement: CPU use of other processes, and when our own workers are idle.

Read from /proc; elsewhere only the load average is known, and waiting for idle workers is a short pause.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from draftwood.sizing.cpu_use import BUSY, CpuUse, cpu_seconds, together

PAUSE = 0.05  # seconds between two methods at least: threads spin for a while after a matrix product
TICK = 0.03  # longer than the clock tick in which /proc counts


def load_average() -> list[float]:
    return [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else []


def settle(
    pids: Sequence[int],
    patience: float = 2.0,
    *,
    spent: Callable[[Sequence[int]], float | None] = together,
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], None] = sleep,
) -> None:
    """Wait until these processes use no CPU, so that spinning threads of one do not slow the next."""
    wait(PAUSE)
    end = clock() + patience
    before = spent(pids)
    while before is not None and clock() < end:
        wait(TICK)
        now = spent(pids)
        if now is None or now <= before:
            return
        before = now


class Meter:
    """How many cores other processes used during a measurement."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._use = CpuUse(pids)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = {"seconds": round(self._use.seconds, 3), "load": load_average()}
        foreign = self._use.foreign()
        if foreign is not None:
            found["foreign_cores"] = round(foreign, 3)
        return found


def look(seconds: float = 0.5) -> dict[str, Any]:
    """Load, cores used by other processes over a short time, and the names of the busiest."""
    meter, before = Meter(()), _processes()
    sleep(seconds)
    found, after = meter.read(), _processes()
    used = {pid: (after[pid][1] - spent) / seconds for pid, (_, spent) in before.items() if pid in after}
    most = sorted((pid for pid in used if used[pid] > 0.1), key=lambda pid: -used[pid])[:3]
    found["busiest"] = [{"name": after[pid][0], "cores": round(used[pid], 2)} for pid in most]
    return found


def _processes() -> dict[int, tuple[str, float]]:
    found: dict[int, tuple[str, float]] = {}
    proc = Path("/proc")
    for folder in proc.iterdir() if proc.is_dir() else ():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            spent = cpu_seconds(int(folder.name))
            try:
                name = (folder / "comm").read_text().strip()
            except OSError:
                continue
            if spent is not None:
                found[int(folder.name)] = (name, spent)
    return found


def warning(seen: dict[str, Any]) -> str | None:
    """The warning to print before measuring on a machine that is not quiet; None on a quiet one."""
    foreign = seen.get("foreign_cores", 0.0)
    if foreign < BUSY:
        return None
    names = ", ".join(f"{b['name']} ({b['cores']:.1f})" for b in seen.get("busiest", []))
    busiest = f": {names}" if names else ""
    return (
        f"WARNING: {foreign:.1f} of {os.cpu_count()} cores are used by other processes{busiest}\n"
        "times will be wrong, most of all those of methods that use all cores; the run continues and this is recorded"
    )
