"""bench engine: what a round costs by part, and how much of it is not the model."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.controllers.fixed import Fixed
from draftwood.core.config import EngineConfig
from draftwood.core.proposal import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import PARTS
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.testing.replay import Replay
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match


@dataclass(frozen=True, slots=True)
class Cost:
    """Milliseconds per round by part; `draft` is the part of propose that was model passes."""

    recipe: str
    batch: int
    rounds: int
    tokens_per_pass: float
    parts: dict[str, float]
    draft: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def overhead(self) -> float:
        """Share of a round outside target and draft passes."""
        return 1 - (self.parts["score"] + self.draft) / self.total


def replay(loaded: Loaded, prompts: Sequence[Sequence[int]], params: SamplingParams, nodes: int) -> Recipe:
    """Trees of always `nodes` nodes that cost nothing to draft: the plain answers, every fifth token wrong."""
    llm = LLM(loaded, "autoregressive", config=EngineConfig(max_num_seqs=1))
    answers = {tuple(p): llm.generate([p], params)[0].token_ids for p in prompts}
    drafter = Replay(answers, loaded.config.vocab_size)
    return Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(nodes))


def measure(
    loaded: Loaded,
    recipe: str | Recipe,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    batch: int,
    name: str | None = None,
) -> Cost:
    """Decode the prompts, at most `batch` at a time; rounds that carry prompt chunks are left out."""
    llm = LLM(loaded, recipe, config=EngineConfig(max_num_seqs=batch))
    requests = [llm.request(p, params) for p in prompts]
    seconds = dict.fromkeys(PARTS, 0.0)
    draft, rounds = 0.0, 0
    for request in requests:
        llm.engine.add(request)
    while llm.engine.has_work:
        before, drafted, count = dict(llm.engine.totals.seconds), llm.engine.totals.draft_seconds, llm.engine.rounds
        filling = any(llm.engine.cache.length(s) + 1 < r.num_known for s, r in llm.engine.scheduler.running.items())
        arriving = llm.engine.scheduler.waiting and len(llm.engine.scheduler.running) < batch
        llm.engine.step()
        if filling or arriving or llm.engine.rounds == count:
            continue
        rounds += 1
        draft += llm.engine.totals.draft_seconds - drafted
        for part in PARTS:
            seconds[part] += llm.engine.totals[part] - before.get(part, 0.0)
    emitted, passes = sum(len(r.output) for r in requests), sum(r.stats.target_passes for r in requests)
    each = 1000 / max(rounds, 1)
    parts = {part: s * each for part, s in seconds.items()}
    return Cost(name or llm.recipe_name, batch, rounds, emitted / max(passes, 1), parts, draft * each)
