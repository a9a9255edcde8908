"""Ctrl-C in commands: the current round is finished and the text so far is kept."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = 130  # 128 + SIGINT, what a shell expects


@contextmanager
def until_interrupted(*others: signal.Signals) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one is an ordinary KeyboardInterrupt. `others` mean the same."""
    event = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    with handled(handle, signal.SIGINT, *others):
        yield event


@contextmanager
def handled(handle: Callable[[int, FrameType | None], None], *signals: signal.Signals) -> Iterator[None]:
    """Signals call `handle`; before and after, what they called before."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
