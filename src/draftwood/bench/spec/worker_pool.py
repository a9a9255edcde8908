"""WorkerPool: the processes of a run, and which of them answers for which method."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from draftwood.bench.other_processes import Meter, settle
from draftwood.bench.spec.answer import PROMPT_START, UNJUDGED, Answer, shared_text
from draftwood.bench.spec.peers import OURS, Settings
from draftwood.bench.spec.questions import Item
from draftwood.bench.spec.worker_process import WorkerDied, WorkerFailed, WorkerProcess


class WorkerPool:
    """Our recipes share one process, every peer has one. All but the answering one are blocked."""

    def __init__(
        self, settings: Settings, peers: Sequence[str], processes: Mapping[str, WorkerProcess] | None = None
    ) -> None:
        self.settings, self.peers = settings, tuple(peers)
        self.workers = processes or {name: WorkerProcess(name) for name in (OURS, *peers)}
        self.ours = self.workers[OURS]
        self.process = {**dict.fromkeys(settings.methods, self.ours), **{name: self.workers[name] for name in peers}}
        self.prompts: list[list[int]] = []
        self.warmup = 0

    @property
    def methods(self) -> tuple[str, ...]:
        return (*self.settings.methods, *self.peers)

    @property
    def facts(self) -> dict[str, Any]:
        return {name: worker.facts for name, worker in self.workers.items()}

    def open(self, items: Sequence[Item], warmup: int) -> None:
        """Load all models. Ours must succeed; a peer that fails to load has failed answers."""
        self.ours.open(self.settings)
        self.prompts = self.ours.call("encode", texts=[item.text for item in items])["prompts"]
        longest = max(map(len, self.prompts), default=0) + self.settings.max_tokens
        self.settings = replace(self.settings, eos=tuple(self.ours.facts.get("eos", ())), context=longest)
        self.warmup = warmup
        with suppress(WorkerFailed):
            self._warm(self.ours)
        for name in self.peers:
            with suppress(WorkerFailed):
                self._ready(name)

    def _ready(self, method: str) -> None:
        """Start the method's process if it does not run, and warm it up before it is timed."""
        process = self.process[method]
        if not process.alive:
            process.open(self.settings)
            self._warm(process)

    def _warm(self, process: WorkerProcess) -> None:
        for method in self.methods:
            for _ in range(self.warmup if self.process[method] is process else 0):
                try:
                    process.call("answer", method=method, prompt=self.prompts[0], index=0)
                except WorkerDied:
                    raise
                except WorkerFailed:
                    break  # the timed answer fails too and is recorded

    def ask(self, method: str, item: Item, index: int) -> Answer:
        """One answer, or its failure."""
        prompt = self.prompts[index]
        answer = Answer(method, item.id, item.category, item.task, len(prompt), item.text[:PROMPT_START])
        try:
            self._ready(method)
            settle(self.pids)
            said = self.process[method].call("answer", method=method, prompt=prompt, index=index)
            for key, value in said.items():
                setattr(answer, key, value)
            if not answer.emitted:
                answer.error = "no token was emitted"
        except WorkerFailed as error:
            answer.error = str(error)
        return answer

    def judge(self, answer: Answer, plain: Answer, index: int) -> None:
        """Compare an answer with plain decoding's: required of recipes, information for peers."""
        if not (answer.good and plain.good):
            answer.why = "plain decoding failed here" if answer.good else ""
            return
        if answer.method in self.peers:
            if answer.tokens and self.settings.temperature == 0:  # above 0 peers use other random numbers
                answer.same_text = shared_text(answer.tokens, plain.tokens, self.settings.eos)
            answer.why = "other arithmetic"
            return
        asked = {"method": answer.method, "tokens": answer.tokens, "plain": plain.tokens}
        try:
            self._ready(answer.method)
            said = self.ours.call("judge", prompt=self.prompts[index], index=index, **asked)
        except WorkerFailed as error:
            said = {"status": UNJUDGED, "error": f"comparison failed: {error}"}
        for key, value in said.items():
            setattr(answer, key, value)

    @property
    def pids(self) -> list[int]:
        return [pid for worker in self.workers.values() if (pid := worker.pid) is not None]

    def meter(self) -> Meter:
        return Meter(self.pids)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
