"""How much of a stretch of time a GPU runs kernels. They may overlap, so the union of their times counts."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def kernel_seconds(run: Callable[[], Any]) -> float:
    """Seconds in which at least one kernel runs, as torch's profiler records them. The run itself is slower than without."""
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    events: Any = recorded.events()
    on_device = [e for e in events if e.device_type.name == "CUDA"]
    return covered((e.time_range.start, e.time_range.end) for e in on_device) / 1e6


def outside(seconds: float, in_kernels: float) -> float:
    """The share of `seconds` without a kernel; 0 where the recorded kernels took longer than the run without a recorder."""
    return max(0.0, 1 - in_kernels / seconds) if seconds > 0 else 0.0
