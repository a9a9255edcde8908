"""Bridge: event loops on one side, one thread that runs all engines on the other.

The thread does every round of every engine, so an engine is never used from two threads and the event loop never waits
for a model. What a round emitted goes into the mailboxes of its requests, and one call wakes the event loop. A mailbox that
nobody reads is bounded: its request is cancelled, and no other request notices.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any

from draftwood.errors import DraftwoodError, EngineError, OptionError
from draftwood.server.ask import Ask, Mailbox, Update
from draftwood.server.rounds import RoundRecorder

if TYPE_CHECKING:
    from draftwood.llm import LLM

log = logging.getLogger("draftwood")

MAX_UNREAD = 4096  # tokens of each sequence


class Busy(DraftwoodError):
    """As many requests as are allowed are being answered. `retry_after`: seconds."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Bridge:
    """`open_llm` opens a recipe by name, in the engine thread, when it is first asked for."""

    def __init__(self, open_llm: Callable[[str], "LLM"], *, max_outstanding: int = 256) -> None:
        self._open_llm = open_llm
        self.max_outstanding = max_outstanding
        self.outstanding = 0  # sequences of callers that were let in
        self.llms: dict[str, LLM] = {}
        self._recorders: dict[str, RoundRecorder] = {}
        self._live: list[Ask] = []
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stop = False
        self._refusing = ""  # why nothing new is taken
        self.failure = ""  # why the thread ended

    # --- for event loops

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="draftwood-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def num_live(self) -> int:
        """Sequences in the engines or in their queues."""
        return len(self._live)

    @property
    def num_running(self) -> int:
        """Those of them that have emitted a token."""
        return sum(ask.first_at is not None for ask in list(self._live))

    @property
    def refusing(self) -> str:
        return self._refusing or self.failure

    def enter(self, sequences: int) -> None:
        """Let a caller in; Busy if there are too many. `leave` must follow."""
        if self.refusing:
            raise Busy(f"this server takes no more requests: {self.refusing}", retry_after=5)
        if self.outstanding + sequences > self.max_outstanding:
            raise Busy(
                f"{self.outstanding} sequences are being answered or wait, at most {self.max_outstanding} may\n"
                "hint: try again later"
            )
        self.outstanding += sequences

    def leave(self, sequences: int) -> None:
        self.outstanding -= sequences

    async def llm(self, recipe: str) -> "LLM":
        """An open recipe."""
        found = self.llms.get(recipe)
        return await self.call(lambda: self._opened(recipe)) if found is None else found

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function between two rounds, in the engine thread."""
        if self.failure or not self.alive:
            raise EngineError(f"the engine thread has ended: {self.failure or 'it was closed'}")
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._commands.put(run)
        waiting = asyncio.wrap_future(future)
        try:
            while not (await asyncio.wait({waiting}, timeout=1))[0]:
                if not self.alive:
                    raise EngineError(f"the engine thread has ended: {self.failure or 'it was closed'}")
        except BaseException:
            waiting.cancel()
            raise
        return waiting.result()

    async def submit(self, asks: Sequence[Ask]) -> None:
        """Queue sequences. OptionError if one of them can never run; then none is queued."""
        await self.call(lambda: self._add(asks))

    def cancel(self, asks: Sequence[Ask], why: str) -> None:
        """End what still runs of these, before the next round."""
        self._commands.put(lambda: self._cancel(asks, why))

    async def follow(self, asks: Sequence[Ask]) -> AsyncIterator[Update]:
        """All updates of sequences with one mailbox. Closing the iterator cancels what still runs."""
        left, mailbox = len(asks), asks[0].mailbox
        try:
            while left:
                update = await mailbox.next()
                left -= update.finished
                yield update
        finally:
            if left:
                self.cancel(asks, "disconnected")

    async def close(self, drain: float = 0.0) -> None:
        """Take nothing new, let what runs end for so many seconds, cancel the rest, end the thread."""
        self._refusing = self._refusing or "it is shutting down"
        end = monotonic() + drain
        while self.alive and self._live and monotonic() < end:
            await asyncio.sleep(0.02)
        if self.alive:
            await self.call(self._finish_all)
            assert self._thread is not None
            await asyncio.to_thread(self._thread.join)

    def refuse(self, why: str) -> None:
        self._refusing = self._refusing or why

    async def cancel_all(self, why: str) -> None:
        await self.call(lambda: self._cancel(list(self._live), why))

    # --- in the engine thread

    def _run(self) -> None:
        try:
            while not (self._stop and not self._live):
                self._obey(wait=not self._live)
                self._expire()
                for name in list(self.llms):
                    self._round(name)
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
            log.exception("the engine thread failed")
            self._refusing = "its engine thread has failed"
            self._end_all(f"the engine thread failed: {self.failure}")

    def _obey(self, wait: bool) -> None:
        """All commands that have come; waits for one where nothing runs."""
        try:
            self._commands.get(block=wait)()
            while True:
                self._commands.get_nowait()()
        except queue.Empty:
            return

    def _opened(self, recipe: str) -> "LLM":
        if recipe not in self.llms:
            llm = self._open_llm(recipe)
            self._recorders[recipe] = RoundRecorder(llm.tokenizer.token_text)
            llm.record(self._recorders[recipe])
            self.llms[recipe] = llm
        return self.llms[recipe]

    def _add(self, asks: Sequence[Ask]) -> None:
        if self._refusing:
            raise Busy(f"this server takes no more requests: {self._refusing}", retry_after=5)
        for ask in asks:
            self._opened(ask.recipe).engine.check(ask.request)
        for ask in asks:
            self._live.append(ask)
            if ask.follows is None:
                self._enter(ask)

    def _enter(self, ask: Ask) -> None:
        ask.entered = True
        if ask.with_rounds:
            self._recorders[ask.recipe].watch(ask.request, ask.views)
        try:
            self.llms[ask.recipe].engine.add(ask.request)
        except OptionError as error:
            ask.request.finish("error", str(error))

    def _cancel(self, asks: Sequence[Ask], why: str) -> None:
        for ask in asks:
            if not ask.request.finished:
                ask.ended_by = why
                if ask.entered:
                    self.llms[ask.recipe].engine.cancel(ask.request)
                ask.request.finish("cancelled")
        self._settle([ask for ask in asks if ask in self._live])

    def _expire(self) -> None:
        """Cancel what has run out of time, and what nobody reads."""
        if not self._live:
            return
        now = monotonic()
        late = [ask for ask in self._live if ask.deadline is not None and ask.deadline <= now]
        if late:
            self._cancel(late, "timeout")
        unread = [ask for ask in self._live if ask.mailbox.unread > MAX_UNREAD * ask.mailbox.sequences]
        if unread:
            self._cancel(unread, "slow_reader")

    def _round(self, name: str) -> None:
        """One round of one engine, and what it did to the mailboxes."""
        llm = self.llms[name]
        asks = [ask for ask in self._live if ask.recipe == name]
        if not any(ask.entered for ask in asks):
            return
        engine = llm.engine
        try:
            engine.step()
        except Exception:  # the requests have ended with the reason, and the next one gets a fresh engine
            log.exception("a round of the recipe %s failed", name)
        self._recorders[name].flush()
        self._settle(asks, llm.source_names)
        if engine.closed:
            for ask in asks:
                if ask in self._live and ask.entered:  # of a failed round
                    ask.request.finish("error", "the engine was closed")
            self._settle(asks, llm.source_names)

    def _settle(self, asks: Sequence[Ask], names: Sequence[str] = ()) -> None:
        """Post what is new of these, let followers in, and wake the readers."""
        moved = {ask for ask in asks if (ask.entered or ask.request.finished) and ask.advance(names)}
        if not moved:
            return
        for ask in [ask for ask in moved if ask.request.finished]:
            self._live.remove(ask)
            if ask.with_rounds:
                self._recorders[ask.recipe].forget(ask.request)
        for ask in self._live:
            if not ask.entered and ask.follows in moved:
                self._enter(ask)
        wake: dict[asyncio.AbstractEventLoop, set[Mailbox]] = {}
        for ask in moved:
            wake.setdefault(ask.mailbox.loop, set()).add(ask.mailbox)
        for loop, mailboxes in wake.items():
            try:
                loop.call_soon_threadsafe(_wake, mailboxes)
            except RuntimeError:  # the loop is closed; nobody reads any more
                self._commands.put(lambda gone=mailboxes: self._drop(gone))

    def _drop(self, mailboxes: set[Mailbox]) -> None:
        self._cancel([ask for ask in self._live if ask.mailbox in mailboxes], "disconnected")

    def _end_all(self, error: str) -> None:
        for ask in self._live:
            ask.request.finish("error", error)
        self._settle(list(self._live))

    def _finish_all(self) -> None:
        self._cancel(list(self._live), "shutdown")
        self._stop = True
        for llm in self.llms.values():
            llm.close()


def _wake(mailboxes: set[Mailbox]) -> None:
    for mailbox in mailboxes:
        mailbox.ready.set()


def opener(first: "LLM", names: Mapping[str, str]) -> Callable[[str], "LLM"]:
    """Opens recipes on the weights of a model that is loaded already. `names`: recipes by the names of requests."""

    def open_one(name: str) -> "LLM":
        from draftwood.llm import LLM

        return first if first.recipe_name == name else LLM(first.loaded, names[name], config=first.config)

    return open_one
