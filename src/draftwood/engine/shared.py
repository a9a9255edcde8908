"""SharedEngine: one engine for several threads. Each thread that waits for a token runs the next round for all.

An interrupt never cuts a round off (see HeldInterrupt). When a round fails, its requests end with the error, the caller
gets the exception, and later requests get a fresh engine.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from draftwood.core.request import Request
from draftwood.engine.engine import Engine
from draftwood.engine.interrupt import HeldInterrupt
from draftwood.errors import EngineError


@dataclass(slots=True, eq=False)
class Running:
    """A request with its prompt as the user wrote it, and the seconds it ran."""

    request: Request
    prompt: Any
    started: float = 0.0
    seconds: float = 0.0

    def stop(self) -> None:
        """Stop the clock when the request ends, in whichever thread."""
        self.seconds = self.seconds or perf_counter() - self.started


class SharedEngine:
    """Requests in, rounds until they have finished. `make` builds an engine with an empty cache."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.make = make
        self.engine = make()
        self._lock = threading.Lock()
        self._running: dict[int, Running] = {}
        self._leaving: deque[Running] = deque()  # to be cancelled before the next round

    def run(self, several: Sequence[Running], advance: Callable[[int], None]) -> None:
        """Run all to their ends; `advance` hears how many have finished. They enter the engine as it has room, so that
        requests of other threads find a short queue."""
        todo, live = deque(several), list[Running]()
        with HeldInterrupt() as interrupt:
            try:
                while todo or live:
                    with self._lock:
                        while todo and self._has_room():
                            live.append(todo.popleft())
                            self._add(live[-1])
                    self._step(live[0] if live else None)
                    interrupt.deliver()
                    before, live = len(live), [each for each in live if not each.request.finished]
                    advance(before - len(live))
            finally:
                self.cancel(live)

    def rounds(self, running: Running) -> Generator[None]:
        """Yields after each round of one request, the last time when it has finished. Closing the iterator cancels it."""
        try:
            with HeldInterrupt(), self._lock:
                self._add(running)
            ended = False
            while not ended:
                with HeldInterrupt() as interrupt:
                    self._step(running)
                    interrupt.deliver()
                ended = running.request.finished  # before the yield: another thread may finish it meanwhile
                yield
        finally:
            self.cancel([running])

    def cancel(self, several: Sequence[Running]) -> None:
        """End what still runs. Never waits for the lock: the garbage collector may close a forgotten stream in the
        middle of a round, in the thread that holds the lock. The holder of the lock cancels before the next round."""
        self._leaving.extend(each for each in several if not each.request.finished)
        if self._leaving and self._lock.acquire(blocking=False):
            try:
                self._cancel_leaving()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Cancel what runs and refuse what comes."""
        with self._lock:
            self.engine.close()

    def _has_room(self) -> bool:
        config = self.engine.config
        return self.engine.scheduler.waiting < min(config.max_num_seqs, config.max_num_waiting)

    def _add(self, running: Running) -> None:
        self.engine.add(running.request)
        self._running[running.request.id] = running
        running.started = perf_counter()

    def _step(self, running: Running | None) -> None:
        """One round for all requests, unless another thread has finished this one meanwhile."""
        with self._lock:
            self._cancel_leaving()
            if running is not None and running.request.finished:
                return
            if self.engine.closed:
                raise EngineError("this model was closed while a request was running")
            try:
                finished = self.engine.step()
            except BaseException:
                for each in self._running.values():
                    each.stop()
                self._running.clear()
                self.engine = self.make()
                raise
            for request in finished:
                if (ended := self._running.pop(request.id, None)) is not None:  # others may use the engine themselves
                    ended.stop()

    def _cancel_leaving(self) -> None:
        while self._leaving:
            running = self._leaving.popleft()
            self.engine.cancel(running.request)
            self._running.pop(running.request.id, None)
            running.stop()
