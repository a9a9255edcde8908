"""Progress of a long run on stderr: one line rewritten on a terminal, elsewhere a new line at intervals."""

import sys
from collections.abc import Callable
from time import monotonic
from typing import TextIO

EVERY = 30.0  # seconds between two lines in a file or a pipe


class Progress:
    """Called with (done, total) after every question, and once before the first."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.clock = clock
        self.terminal = self.stream.isatty()
        self._begin: tuple[float, int] | None = None
        self._printed = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = self.clock()
        if self._begin is None:
            self._begin = (now, done)
            self._printed = now
            resumed = f", {done} of them done before" if done else ""
            print(f"{total} questions{resumed}", file=self.stream, flush=True)
            return
        text = f"{done}/{total} questions{self._left(now, done, total)}"
        if self.terminal:
            end = "\n" if done >= total else ""
            print(f"\r\x1b[K{text}", end=end, file=self.stream, flush=True)
        elif now - self._printed >= EVERY or done >= total:
            self._printed = now
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


def say(text: str) -> None:
    """One line on stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def quarters(unit: str) -> Callable[[int, int], None]:
    """Called with (done, total): a line at every quarter of the way."""

    def tell(done: int, total: int) -> None:
        if done == total or done % max(total // 4, 1) == 0:
            say(f"{done}/{total} {unit}")

    return tell


def once_per_method() -> Callable[[str], None]:
    """Called with "method: how far": a line whenever another method begins."""
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        name = text.partition(": ")[0]
        if name != last:
            last = name
            say(f"running {name}")

    return tell
