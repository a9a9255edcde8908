"""Answers of one engine, round by round: tokens emitted, and seconds by part."""

import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from draftwood.bench import other_processes
from draftwood.bench.study.predict import Spent
from draftwood.core.config import EngineConfig
from draftwood.core.limit import CostEstimate
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request, Stats
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Times
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded

WARM_PROMPT, WARM_TOKENS = 8, 4  # tokens; drafters over features need two prompt tokens and a second round


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `decoding`: its rounds after the one that reads the prompt; `seconds`: measured around the engine."""

    tokens: tuple[int, ...]
    stats: Stats
    decoding: tuple[Spent, ...]
    seconds: float
    error: str | None = None
    finish: str = ""

    @property
    def per_token(self) -> float:
        """Seconds of decoding per token it emitted."""
        return sum(r.wall for r in self.decoding) / sum(r.emitted for r in self.decoding)


class Watched:
    """A cost model that also keeps the times of the rounds."""

    def __init__(self, cost_model: CostEstimate) -> None:
        self.cost_model, self.times = cost_model, list[Times]()

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return self.cost_model.pass_seconds(tokens, context)

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return self.cost_model.draft_seconds(passes, nodes)

    def rest_seconds(self) -> float:
        return self.cost_model.rest_seconds()

    def observe(self, times: Times) -> None:
        self.times.append(times)
        self.cost_model.observe(times)


class TimedEngine:
    """A fresh engine for one sequence. Of earlier engines only the `cost_model` is kept, and updated: it describes the
    machine, and a server has one after a minute."""

    def __init__(
        self, loaded: Loaded, recipe: str | Recipe, cost_model: CostEstimate, max_model_len: int | None = None
    ) -> None:
        self.llm = LLM(loaded, recipe, config=EngineConfig(max_num_seqs=1, max_model_len=max_model_len))
        self.llm.engine.cost_model = self.watched = Watched(cost_model)

    def answer(self, prompt: Sequence[int], params: SamplingParams, *, pause: bool = False) -> Answer:
        """A few tokens of another prompt are drafted and decoded before the clock starts. `pause`: wait until our own
        threads are idle."""
        other = next(token for token in range(2) if token != prompt[0])  # shares no prefix with the prompt
        warm = replace(params, max_tokens=WARM_TOKENS, min_tokens=0, ignore_eos=True)
        for _ in self._rounds(self.llm.request([other] * WARM_PROMPT, warm)):
            pass
        request = self.llm.request(prompt, params)
        gc.collect()
        if pause:
            other_processes.settle([os.getpid()])
        start = perf_counter()
        rounds = list(self._rounds(request))
        seconds = perf_counter() - start
        first = next((i for i, r in enumerate(rounds) if r.emitted), len(rounds))
        why = request.error or request.stats.disabled
        decoding = tuple(rounds[first + 1 :])
        return Answer(tuple(request.output), request.stats, decoding, seconds, why, request.finish_reason or "")

    def _rounds(self, request: Request) -> Iterator[Spent]:
        """Run a request to its end, round by round."""
        engine, times = self.llm.engine, self.watched.times
        engine.add(request)
        while not request.finished:
            before = len(request.output)
            times.clear()
            start = perf_counter()
            engine.step()
            wall = perf_counter() - start
            if times:
                yield Spent(times[-1], wall, len(request.output) - before)
