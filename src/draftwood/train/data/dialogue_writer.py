"""The target writes a data set: many dialogues at once, driven through one engine whose slots are kept busy.

Dialogues are numbered. They start in order, as soon as a slot is free, and are stored in order: a finished one waits for all
before it. The files therefore do not depend on which dialogue was faster, and an interrupted run resumes to the same files:
exactly on batch-invariant backends (int8 on a CPU), up to near ties on others.
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
from draftwood.train.data.dataset_folder import Folder, Outcome
from draftwood.train.data.dialogue_scripts import Ask, Plan, Reply, Script, Scripts

TOGETHER = 16  # this fraction of the slots is refilled at once, because a pass with prompts costs several decode passes
BLOCK = 256  # dialogues that are planned, and their prompts tokenised, together
SAVE_DIALOGUES, SAVE_SECONDS = 64, 10.0
PROMPT_TOKENS = 1280  # of a dialogue before its last answer
FRUITLESS = 1000  # attempts without a dialogue (and two more per slot) after which the run fails

Progress = Callable[[Folder], None]


def longest_dialogue(loaded: Loaded, max_tokens: int) -> int:
    """Maximum number of tokens in a dialogue."""
    return min(loaded.info.max_positions - 1, PROMPT_TOKENS + max_tokens)


def open_engine(loaded: Loaded, batch: int, max_tokens: int) -> LLM:
    """An engine that decodes without a drafter."""
    config = EngineConfig(
        max_num_seqs=batch,
        max_model_len=longest_dialogue(loaded, max_tokens) + 1,
        max_prefill_tokens=max(512, 32 * batch),
        max_num_waiting=2 * batch + 16,
    )
    return LLM(loaded, "autoregressive", config=config)


@dataclass(slots=True)
class _Running:
    number: int
    script: Script
    request: Request


class DialogueWriter:
    """Runs scripts on one engine and stores their dialogues in one open folder."""

    def __init__(self, llm: LLM, scripts: Scripts, folder: Folder) -> None:
        self.llm, self.scripts, self.folder = llm, scripts, folder
        self._ids = count()
        self._planned: deque[Plan] = deque()
        self._started = folder.totals.next  # lower numbers are started or done
        self._running: dict[int, _Running] = {}  # by request id
        self._held: list[_Running] = []  # submitted to the engine together
        self._finished: dict[int, Outcome] = {}  # waiting for lower numbers
        self._ready = 0  # answer tokens in `_finished`
        self._fruitless = 0
        self._wanted, self._least = math.inf, 0

    def run(
        self,
        tokens: int | None,
        minutes: float | None = None,
        *,
        least: int = 0,
        until: threading.Event | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Until the folder holds `tokens` answer tokens or the minutes are over, but not before it holds `least` dialogues
        to train on. Setting `until` stops it at once."""
        self._wanted, self._least = math.inf if tokens is None else tokens, least
        totals = self.folder.totals
        deadline = math.inf if minutes is None else monotonic() + 60 * minutes
        saved, clock = monotonic(), perf_counter()

        def go_on() -> bool:
            if until is not None and until.is_set():
                return False
            return not self._enough() and (monotonic() < deadline or totals.lines["train"] < least)

        try:
            while go_on():
                self._fill()
                self._submit()
                for request in self.llm.engine.step():
                    self._settle(request)
                self._store()
                if self.folder.num_waiting >= SAVE_DIALOGUES or monotonic() - saved > SAVE_SECONDS:
                    totals.seconds, clock = totals.seconds + perf_counter() - clock, perf_counter()
                    self.folder.save()
                    saved = monotonic()
                if progress is not None:
                    progress(self.folder)
        finally:
            totals.seconds += perf_counter() - clock
            self.folder.save()
            for running in self._running.values():
                self.llm.engine.cancel(running.request)

    def _enough(self) -> bool:
        totals = self.folder.totals
        return totals.answer_tokens >= self._wanted and totals.lines["train"] >= self._least

    def _fill(self) -> None:
        """Starts dialogues while slots are free and those under way are not expected to suffice."""
        slots = self.llm.config.max_num_seqs
        while self._busy < slots and (not self._busy or self._expected() < self._wanted):
            if not self._planned:
                self._planned.extend(self.scripts.plan(range(self._started, self._started + min(BLOCK, 4 * slots))))
            plan = self._planned.popleft()
            self._started += 1
            self._advance(plan.number, self.scripts.run(plan), None)

    def _expected(self) -> float:
        """Answer tokens once all running dialogues are finished, by the average so far."""
        totals = self.folder.totals
        each = (totals.answer_tokens + 1) / (totals.next + 1) if totals.next >= 16 else 0.0
        return totals.answer_tokens + self._ready + 0.9 * each * self._busy

    @property
    def _busy(self) -> int:
        return len(self._running) + len(self._held)

    def _submit(self) -> None:
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
        """Sends a script the reply; queues its next request."""
        try:
            ask = next(script) if reply is None else script.send(reply)
        except StopIteration as end:
            self._finished[number] = end.value
            self._ready += end.value.num_answer_tokens
            return
        self._held.append(_Running(number, script, self._request(ask)))

    def _request(self, ask: Ask) -> Request:
        config = self.llm.loaded.config
        # Without a text stream: detokenising every token would cost more than all the planning.
        return Request(next(self._ids), ask.prompt, ask.params, vocab_size=config.vocab_size, eos=config.eos_token_ids)

    def _store(self) -> None:
        """Stores finished dialogues in order until there are enough."""
        totals = self.folder.totals
        while totals.next in self._finished and not self._enough():
            outcome = self._finished.pop(totals.next)
            self._ready -= outcome.num_answer_tokens
            before = totals.answer_tokens
            self.folder.add(outcome)
            self._fruitless = 0 if totals.answer_tokens > before else self._fruitless + 1
        if self._fruitless > FRUITLESS + 2 * self.llm.config.max_num_seqs:
            why = ", ".join(f"{reason} {times}" for reason, times in totals.dropped.most_common())
            raise EngineError(f"the last {self._fruitless} attempts gave no dialogue: {why}")
