"""Clock: the seconds of each part of a round. It never waits for a device."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import torch

from draftwood.core.verdict import Times

AHEAD = ("propose", "score")
"""Parts whose work an accelerator may still do while the host is in a later part, and before the verdict is read."""
READ = "verify"
"""The part in which the host waits for it."""


class Mark(Protocol):
    """A moment of the device's work, as torch.cuda.Event."""

    def record(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class Clock:
    """`mark_device`: makes marks in the work of an accelerator; None: the host does all work itself.

    An accelerator is given its work and the host goes on, so between the host's own marks lies the enqueuing alone. `settle`
    corrects this with the device's marks, once the verdict has been read and all of them are in the past.
    """

    def __init__(self, mark_device: Callable[[], Mark] | None = None) -> None:
        self.times = Times()
        self._mark_device = mark_device
        self._marks: dict[str, tuple[Mark, Mark]] = {}
        self._last_mark: Mark | None = None
        self._last = perf_counter()

    @staticmethod
    def of(device: torch.device) -> "Clock":
        return Clock(_cuda_mark if device.type == "cuda" else None)

    def mark(self, part: str) -> None:
        now = perf_counter()
        self.times.add(part, now - self._last)
        self._last = now
        if self._mark_device is None or self._read:
            return
        mark = self._mark_device()
        mark.record()
        if self._last_mark is not None:
            self._marks[part] = self._last_mark, mark
        self._last_mark = mark

    @property
    def _read(self) -> bool:
        return READ in self.times.seconds

    def settle(self) -> None:
        """After the verdict was read: what the host waited for belongs to the parts whose work it was."""
        if not self._read:
            return
        for part in AHEAD:
            if part in self._marks:
                first, last = self._marks.pop(part)
                more = max(0.0, first.elapsed_time(last) / 1000 - self.times[part])
                more = min(more, self.times[READ])  # the sum stays the time of the round
                self.times.add(part, more)
                self.times.add(READ, -more)


def _cuda_mark() -> Mark:
    return torch.cuda.Event(enable_timing=True)
