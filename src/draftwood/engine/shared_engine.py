"""SharedEngine: one engine for several threads. Each thread that waits for a token runs the next round for all.

An interrupt never cuts a round off (see HeldInterrupt). When a round fails, its requests end with the error, the caller
gets the exception, and later requests get a fresh engine.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from weakref import WeakSet

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
        self._engine = make()
        self._lock = threading.Lock()
        self._closed = ""  # why no request may come any more
        self._running: dict[int, Running] = {}
        self._leaving: deque[Running] = deque()  # to be cancelled before the next round
        _ALL.add(self)

    @property
    def engine(self) -> Engine:
        """The engine of the next round: a fresh one if the last round failed."""
        if self._engine.closed and not self._closed:
            with self._lock:
                self._revive()
        return self._engine

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
        with HeldInterrupt():
            self._leaving.extend(each for each in several if not each.request.finished)
            if self._leaving and self._lock.acquire(blocking=False):
                try:
                    self._cancel_leaving()
                finally:
                    self._lock.release()

    def close(self) -> None:
        """Cancel what runs and refuse what comes."""
        with HeldInterrupt(), self._lock:
            self._closed = self._closed or "this model was closed"
            self._engine.close()

    def _revive(self) -> None:
        """A fresh engine in place of one whose round failed. Not in the handler of the failure: a further interrupt there
        would leave none."""
        if self._closed:
            raise EngineError(self._closed)
        if self._engine.closed:
            for each in self._running.values():
                if not each.request.finished:
                    each.request.finish("cancelled")
                each.stop()
            self._running.clear()
            self._engine = self.make()

    def _has_room(self) -> bool:
        config = self._engine.config
        return self._engine.scheduler.waiting < min(config.max_num_seqs, config.max_num_waiting)

    def _add(self, running: Running) -> None:
        self._revive()
        self._engine.add(running.request)
        self._running[running.request.id] = running
        running.started = perf_counter()

    def _step(self, running: Running | None) -> None:
        """One round for all requests, unless another thread has finished this one meanwhile."""
        with self._lock:
            self._cancel_leaving()
            if running is not None and running.request.finished:
                return
            self._revive()
            for request in self._engine.step():
                if (ended := self._running.pop(request.id, None)) is not None:  # others may use the engine themselves
                    ended.stop()

    def _cancel_leaving(self) -> None:
        while self._leaving:
            running = self._leaving[0]
            self._engine.cancel(running.request)
            self._running.pop(running.request.id, None)
            running.stop()
            self._leaving.popleft()


_ALL: WeakSet[SharedEngine] = WeakSet()


def _after_fork() -> None:
    """A child process has no other thread: a lock that another one held is never released, and how far its round got is
    unknown."""
    for shared in list(_ALL):
        if shared._lock.locked():
            shared._lock = threading.Lock()
            shared._closed = "this process was forked during a round\nhint: open the model in the child process"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
