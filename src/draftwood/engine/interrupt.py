"""Ctrl-C between rounds: an interrupt that arrives inside a round is held until the round has ended.

A KeyboardInterrupt may be raised between any two bytecodes. Inside a round that would leave the scheduler, the cache
and the drafter with different ideas of what was emitted.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, ClassVar, Self


class HeldInterrupt:
    """A context that keeps one interrupt back. `deliver` hands it to the handler that was there before.

    A second interrupt is handed on at once, so that a round that never ends can be stopped. Inside another such context, in
    other threads than the main one, and where the process ignores interrupts, nothing changes.
    """

    _entered: ClassVar[bool] = False  # in the main thread; asking the signal module takes as long as a small kernel

    def __init__(self) -> None:
        self._before: Any = None
        self._pending = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and not HeldInterrupt._entered:
            before = signal.signal(signal.SIGINT, self._hold)
            if callable(before):
                self._before = before
                HeldInterrupt._entered = True  # set and unset while held, so that no interrupt comes in between
            else:
                signal.signal(signal.SIGINT, before)
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
            HeldInterrupt._entered = False
            signal.signal(signal.SIGINT, self._before)
            if error is None or isinstance(error, Exception):
                self.deliver()
