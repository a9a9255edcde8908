"""Ctrl-C between rounds: an interrupt that arrives inside a round is held until the round has ended.

A KeyboardInterrupt may be raised between any two bytecodes. Inside a round that would leave the scheduler, the cache
and the drafter with different ideas of what was emitted.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class HeldInterrupt:
    """A context that keeps one interrupt back. `deliver` hands it to the handler that was there before.

    A second interrupt is handed on at once, so that a round that never ends can be stopped. Inside another such context, in
    other threads than the main one, and where the process ignores interrupts, nothing changes.
    """

    def __init__(self) -> None:
        self._before: Any = None
        self._pending = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            nested = isinstance(getattr(before, "__self__", None), HeldInterrupt)
            if callable(before) and not nested:
                self._before = before
                signal.signal(signal.SIGINT, self._hold)
        return self

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._pending:
            self._before(number, frame)
        self._pending = True

    def deliver(self) -> None:
        """Call the former handler if an interrupt is held. It usually raises KeyboardInterrupt."""
        if self._pending:
            self._pending = False
            self._before(signal.SIGINT, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            if error is None:
                self.deliver()
