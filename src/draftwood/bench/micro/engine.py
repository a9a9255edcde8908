"""bench engine: the time of a decoding round by part, and the share of it outside the model.

The model is the target pass (`score`) and the draft passes; all other time of a round is overhead. On a GPU the two are
timed by marks in its own work, and the draft counts as a whole. Cases alternate prompt by prompt, so that a change of the
machine affects all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftwood.bench.micro.target_pass import order
from draftwood.bench.statistics import Ratio, ratio_of_means
from draftwood.bench.study.timed_answer import Watched
from draftwood.controllers.fixed import Fixed
from draftwood.core import host
from draftwood.core.config import EngineConfig
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import PARTS, Times
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.testing.parts.oracle_drafter import Replay
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

BLOCK = 16  # rounds drawn together by the bootstrap: neighbouring rounds resemble each other
SPARE = 256  # cache entries of a slot beyond prompt and answer, for trees

Prompt = Sequence[int]
Say = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One recipe at one temperature and batch size."""

    name: str
    recipe: str | Recipe
    params: SamplingParams
    batch: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds per round by part; `draft` is the part of propose that was model passes."""

    recipe: str
    temperature: float
    batch: int
    rounds: int
    tokens_per_pass: float
    parts: dict[str, float]
    draft: float
    overhead: Ratio | None  # share of a round outside target and draft passes; None where every round read a prompt

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def replay(loaded: Loaded, prompts: Sequence[Prompt], params: SamplingParams, nodes: int) -> Recipe:
    """Trees of always `nodes` nodes that cost nothing to draft: the plain answers, every fifth token wrong."""
    llm = LLM(loaded, "autoregressive", config=EngineConfig(max_num_seqs=1))
    answers = {tuple(p): llm.generate([p], params)[0].token_ids for p in prompts}
    drafter = Replay(answers, loaded.config.vocab_size)
    return Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(nodes))


def measure(
    loaded: Loaded, cases: Sequence[Case], prompts: Sequence[Prompt], say: Say = lambda done, total: None
) -> list[Cost]:
    """Every case decodes all prompts, `batch` at a time."""
    meters = [Meter(loaded, case, prompts) for case in cases]
    for meter in meters:
        meter.run(prompts[:1])  # warm-up
        meter.reset()
    for i in range(len(prompts)):
        say(i, len(prompts))
        for meter in order(meters, i):
            if part := due(prompts, i, meter.case.batch):
                meter.run(part)
    say(len(prompts), len(prompts))
    return [meter.cost() for meter in meters]


def due(prompts: Sequence[Prompt], index: int, batch: int) -> Sequence[Prompt]:
    """The prompts that a batch of this size decodes after prompt `index` has come: the last full batch, or the rest."""
    full, last = (index + 1) % batch == 0, index + 1 == len(prompts)
    return prompts[index // batch * batch : index + 1] if full or last else ()


class Meter:
    """The engine of one case, and the seconds of its decoding rounds."""

    def __init__(self, loaded: Loaded, case: Case, prompts: Sequence[Prompt]) -> None:
        longest = max(map(len, prompts)) + case.params.max_tokens + SPARE
        config = EngineConfig(max_num_seqs=case.batch, max_model_len=min(longest, loaded.info.max_positions))
        self.case, self.llm = case, LLM(loaded, case.recipe, config=config)
        self.llm.engine.cost_model = self.watched = Watched(self.llm.cost_model)
        self.reset()

    def reset(self) -> None:
        self.llm.engine.runner.forget()  # otherwise a prompt that is still in the cache would not be read again
        self.watched.times.clear()
        self.emitted = self.passes = 0

    @property
    def rounds(self) -> list[Times]:
        """Those that read no prompt."""
        return [times for times in self.watched.times if not times.prompt_tokens]

    def run(self, prompts: Sequence[Prompt]) -> None:
        """Decode these together."""
        requests = [self.llm.request(p, self.case.params) for p in prompts]
        for request in requests:
            self.llm.engine.add(request)
        while self.llm.engine.has_work:
            self.llm.engine.step()
        self.emitted += sum(len(r.output) for r in requests)
        self.passes += sum(r.stats.target_passes for r in requests)

    def cost(self) -> Cost:
        rounds = self.rounds
        count = max(len(rounds), 1)
        blocks = [rounds[i : i + BLOCK] for i in range(0, len(rounds), BLOCK)]
        total = [sum(r.total for r in block) for block in blocks]
        on_host = host.on_host(self.llm.device)
        outside = [
            sum(r.total - r["score"] - (r.draft_seconds if on_host else r["propose"]) for r in block)
            for block in blocks
        ]
        return Cost(
            self.case.name,
            self.case.params.temperature,
            self.case.batch,
            len(rounds),
            self.emitted / max(self.passes, 1),
            {part: 1000 * sum(r[part] for r in rounds) / count for part in PARTS},
            1000 * sum(r.draft_seconds for r in rounds) / count,
            ratio_of_means(outside, total),
        )
