"""Progress of a long run on stderr: one line rewritten on a terminal, elsewhere a new line now and then."""

import sys
from collections.abc import Callable
from time import monotonic
from typing import TextIO

EVERY = 30.0  # seconds between two lines where nobody watches


class Progress:
    """Called with (done, total) after every question; the first call tells where the run begins."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.clock = clock
        self.terminal = self.stream.isatty()
        self._begin: tuple[float, int] | None = None
        self._said = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = self.clock()
        if self._begin is None:
            self._begin = (now, done)
            self._said = now
            resumed = f", {done} of them known from before" if done else ""
            print(f"{total} questions{resumed}", file=self.stream, flush=True)
            return
        text = f"{done}/{total} questions{self._left(now, done, total)}"
        if self.terminal:
            end = "\n" if done >= total else ""
            print(f"\r\x1b[K{text}", end=end, file=self.stream, flush=True)
        elif now - self._said >= EVERY or done >= total:
            self._said = now
            print(text, file=self.stream, flush=True)

    def _left(self, now: float, done: int, total: int) -> str:
        assert self._begin is not None
        start, before = self._begin
        if done <= before or done >= total:
            return ""
        return f", {duration((now - start) / (done - before) * (total - done))} left"


def duration(seconds: float) -> str:
    """45 s, 3 min, 2 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
