"""One answer by a fresh engine, round by round: tokens emitted, and seconds by part."""

import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from draftwood.bench import other_processes
from draftwood.bench.study.predict import Spent
from draftwood.controllers.cost import CostModel
from draftwood.core.config import EngineConfig
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request, Stats
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Times
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded

SPARE = 256  # cache entries of a slot beyond prompt and answer, for trees
WARM = 4  # tokens before the clock starts: the first is read from the prompt, the last is never drafted


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `decoding`: its rounds after the one that reads the prompt; `seconds`: measured around the engine."""

    tokens: tuple[int, ...]
    stats: Stats
    decoding: tuple[Spent, ...]
    seconds: float
    error: str | None = None

    @property
    def per_token(self) -> float:
        """Seconds of decoding per token it emitted."""
        return sum(r.wall for r in self.decoding) / sum(r.emitted for r in self.decoding)


def answer(
    loaded: Loaded,
    recipe: str | Recipe,
    prompt: Sequence[int],
    params: SamplingParams,
    cost_model: CostModel,
    *,
    pause: bool = True,
) -> Answer:
    """A fresh engine holds nothing of an earlier text; only the `cost_model` of the machine is kept and updated.
    `pause`: wait until our own threads are idle."""
    length = min(len(prompt) + params.max_tokens + SPARE, loaded.info.max_positions)
    llm = LLM(loaded, recipe, config=EngineConfig(max_num_seqs=1, max_model_len=length))
    llm.engine.cost_model = watched = Watched(cost_model)
    other = next(token for token in range(2) if token != prompt[0])  # shares no prefix with the prompt
    for _ in spent(llm, watched, llm.request([other] * 2, SamplingParams(max_tokens=WARM))):
        pass
    request = llm.request(prompt, params)
    gc.collect()
    if pause:
        other_processes.settle([os.getpid()])
    start = perf_counter()
    rounds = list(spent(llm, watched, request))
    seconds = perf_counter() - start
    first = next((i for i, r in enumerate(rounds) if r.emitted), len(rounds))
    why = request.error or request.stats.disabled
    return Answer(tuple(request.output), request.stats, tuple(rounds[first + 1 :]), seconds, why)


class Watched:
    """A cost model that also keeps the times of the last round."""

    def __init__(self, cost_model: CostModel) -> None:
        self.cost_model = cost_model
        self.last: Times | None = None

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return self.cost_model.pass_seconds(tokens, context)

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return self.cost_model.draft_seconds(passes, nodes)

    def rest_seconds(self) -> float:
        return self.cost_model.rest_seconds()

    def observe(self, times: Times) -> None:
        self.last = times
        self.cost_model.observe(times)


def spent(llm: LLM, watched: Watched, request: Request) -> Iterator[Spent]:
    """Run a request to its end, round by round."""
    llm.engine.add(request)
    while not request.finished:
        before, watched.last = len(request.output), None
        start = perf_counter()
        llm.engine.step()
        wall = perf_counter() - start
        if watched.last is not None:
            yield Spent(watched.last, wall, len(request.output) - before)
