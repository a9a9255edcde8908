"""What this process holds: memory and open files. None where the system does not say."""

import gc
import os
from collections.abc import Sequence
from pathlib import Path

MEMORY_GROWTH = 0.03  # of a run over the one before that is no leak
_SELF = Path("/proc/self")


def resident_bytes() -> int | None:
    """Memory that is resident, without what only a cycle still holds."""
    gc.collect()
    try:
        return int((_SELF / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def open_files() -> int | None:
    try:
        return len(os.listdir(_SELF / "fd"))
    except OSError:
        return None


def growth(memory: Sequence[int]) -> float | None:
    """Of the last run over the one before; None below two runs."""
    return memory[-1] / memory[-2] - 1 if len(memory) > 1 else None
