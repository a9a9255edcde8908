"""The maker: the target writes its own training set, many dialogues at once, and the engine is never left half empty.

Dialogue numbers are started in order, as soon as a slot is free, and kept in order: a finished one waits until all before it
are finished. So the files do not depend on who was quicker, and a run that was killed goes on to the same files, bit for bit
on backends whose rows do not depend on the batch (int8 on a CPU), up to near ties elsewhere.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from time import monotonic, perf_counter

from draftwood.core.config import EngineConfig
from draftwood.core.request import Request
from draftwood.errors import EngineError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.train.data.dialogues import TRAIN
from draftwood.train.data.folder import Folder, Outcome
from draftwood.train.data.scripts import Ask, Plan, Reply, Script, Scripts

TOGETHER = 16  # a part of the slots that is filled at once: a pass with prompts in it costs several plain ones
BLOCK = 256  # numbers that are planned, and their prompts tokenised, together
SAVE_DIALOGUES, SAVE_SECONDS = 64, 10.0
ROOM = 1280  # tokens of a dialogue before its last answer
FRUITLESS = 1000  # numbers without a dialogue, and per slot two more, after which the target is given up

Say = Callable[[Folder], None]


def room(loaded: Loaded, max_tokens: int) -> int:
    """Tokens one dialogue may have."""
    return min(loaded.model.max_positions - 1, ROOM + max_tokens)


def open_writer(loaded: Loaded, batch: int, max_tokens: int, device: str = "cpu") -> LLM:
    """An engine that writes plainly: one token per row and pass."""
    config = EngineConfig(
        max_num_seqs=batch,
        max_model_len=room(loaded, max_tokens) + 1,
        max_prefill_tokens=max(512, 32 * batch),
        max_num_waiting=2 * batch + 16,
    )
    return LLM(loaded, "autoregressive", config=config, device=device)


@dataclass(slots=True)
class _Running:
    number: int
    script: Script
    request: Request


class Maker:
    """Drives scripts through one engine, into one open folder."""

    def __init__(self, llm: LLM, scripts: Scripts, folder: Folder) -> None:
        self.llm, self.scripts, self.folder = llm, scripts, folder
        self._ids = count()
        self._planned: deque[Plan] = deque()
        self._started = folder.totals.next  # numbers below are started or done
        self._running: dict[int, _Running] = {}  # by request id
        self._held: list[_Running] = []  # to be handed to the engine together
        self._finished: dict[int, Outcome] = {}  # done before some lower number
        self._ready = 0  # answer tokens among them
        self._fruitless = 0

    def run(
        self,
        tokens: int | None,
        minutes: float | None = None,
        *,
        least: int = 0,
        until: threading.Event | None = None,
        say: Say | None = None,
    ) -> None:
        """Until the folder holds `tokens` answer tokens, `minutes` are over and `least` dialogues to learn from are there,
        or `until` is set."""
        wanted = math.inf if tokens is None else tokens
        totals = self.folder.totals
        deadline = math.inf if minutes is None else monotonic() + 60 * minutes
        saved, clock = monotonic(), perf_counter()

        def time_left() -> bool:
            return monotonic() < deadline or totals.lines[TRAIN] < least

        try:
            while totals.answer_tokens < wanted and time_left() and not (until and until.is_set()):
                self._fill(wanted)
                self._hand_over()
                for request in self.llm.engine.step():
                    self._settle(request)
                self._keep(wanted)
                if self.folder.num_waiting >= SAVE_DIALOGUES or monotonic() - saved > SAVE_SECONDS:
                    totals.seconds, clock = totals.seconds + perf_counter() - clock, perf_counter()
                    self.folder.save()
                    saved = monotonic()
                if say is not None:
                    say(self.folder)
        finally:
            totals.seconds += perf_counter() - clock
            self.folder.save()
            for running in self._running.values():
                self.llm.engine.cancel(running.request)

    def _fill(self, wanted: float) -> None:
        """Start numbers while there are slots, and while what is under way will not do."""
        slots = self.llm.config.max_num_seqs
        while self._busy < slots and (not self._busy or self._expected() < wanted):
            if not self._planned:
                self._planned.extend(self.scripts.plan(range(self._started, self._started + min(BLOCK, 4 * slots))))
            plan = self._planned.popleft()
            self._started += 1
            self._advance(plan.number, self.scripts.run(plan), None)

    def _expected(self) -> float:
        """Answer tokens when all that runs is finished, if it goes on as before."""
        totals = self.folder.totals
        each = (totals.answer_tokens + 1) / (totals.next + 1) if totals.next >= 16 else 0.0
        return totals.answer_tokens + self._ready + 0.9 * each * self._busy

    @property
    def _busy(self) -> int:
        return len(self._running) + len(self._held)

    def _hand_over(self) -> None:
        if self._running and len(self._held) < self.llm.config.max_num_seqs // TOGETHER:
            return
        for held in self._held:
            self.llm.engine.add(held.request)
            self._running[held.request.id] = held
        self._held = []

    def _settle(self, request: Request) -> None:
        running = self._running.pop(request.id)
        self.folder.totals.tokens_written += len(request.output)
        if request.finish_reason == "error":
            raise EngineError(f"the target failed on dialogue {running.number}: {request.error}")
        self._advance(running.number, running.script, Reply(request.output, request.finish_reason == "stop"))

    def _advance(self, number: int, script: Script, reply: Reply | None) -> None:
        """Tell a script what was written; ask the engine for what it wants next."""
        try:
            ask = next(script) if reply is None else script.send(reply)
        except StopIteration as end:
            self._finished[number] = end.value
            self._ready += end.value.num_answer_tokens
            return
        self._held.append(_Running(number, script, self._request(ask)))

    def _request(self, ask: Ask) -> Request:
        config = self.llm.loaded.config
        # Without a text stream: nobody reads along, and decoding every token would cost more than planning all of them.
        return Request(next(self._ids), ask.prompt, ask.params, vocab_size=config.vocab_size, eos=config.eos_token_ids)

    def _keep(self, wanted: float) -> None:
        """What is finished, in order, up to the token that was wanted."""
        totals = self.folder.totals
        while totals.next in self._finished and totals.answer_tokens < wanted:
            outcome = self._finished.pop(totals.next)
            self._ready -= outcome.num_answer_tokens
            before = totals.answer_tokens
            self.folder.add(outcome)
            self._fruitless = 0 if totals.answer_tokens > before else self._fruitless + 1
        if self._fruitless > FRUITLESS + 2 * self.llm.config.max_num_seqs:
            why = ", ".join(f"{reason} {times}" for reason, times in totals.dropped.most_common())
            raise EngineError(f"the last {self._fruitless} tries gave no dialogue: {why}")
