"""How good a set of skipped sub-layers is: tokens a second that it is predicted to emit.

Acceptance is measured: the target answers some prompts, greedily, with chains of a fixed depth, and every round tells how
many tokens of a whole draft were right. Seconds are predicted from sub-layers that were timed once, because the time of one
short run is noisy, and acceptance is the same in every run on kernels whose results do not depend on the batch.

    tokens of a round with K drafted    1 + s_1 + ... + s_K        s_k: the share of rounds that accepted at least k
    seconds                             a pass over K + 1 tokens, K draft passes, the rest of a round
"""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.drafters.layers.skip_set import SkipSet
from draftwood.drafters.layers.skipped import SkippedLayers
from draftwood.search.sub_layer_costs import RoundCosts
from draftwood.sizing.trials import trial_engine
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match


@dataclass(frozen=True, slots=True)
class Measured:
    """`survival[k]`: the share of rounds whose first k + 1 drafted tokens were all accepted. `rounds`: that drafted."""

    survival: tuple[float, ...]
    rounds: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """The best depth of a chain, its tokens a second, and times plain decoding's."""

    depth: int
    tokens_per_second: float
    speed_up: float


class _Counts:
    """Watches rounds: how many accepted at least so many tokens, and how many drafted so deep."""

    def __init__(self, depth: int) -> None:
        self.reached, self.drafted, self.rounds = [0] * depth, [0] * depth, 0

    def record(self, rnd: Round, outcome: Outcome) -> None:
        for levels, kept in zip(outcome.judged, outcome.accepted, strict=True):
            self.rounds += bool(levels)
            for k in range(levels):
                self.drafted[k] += 1
                self.reached[k] += kept > k


def measure(target: Runner, skip: SkipSet, prompts: Sequence[Sequence[int]], depth: int, max_tokens: int) -> Measured:
    """Greedy answers to these prompts, each of at most so many tokens."""
    counts = _Counts(depth)
    recipe = Recipe(
        drafter=SkippedLayers(skip),
        policy=Chain(Draw.GIVEN),
        verifier=Match(),
        controller=Fixed(depth),
        record=(counts,),
    )
    recipe.check(target)
    longest = max(map(len, prompts)) + max_tokens + 2 * depth
    engine = trial_engine(target, recipe, longest)
    tokens = 0
    for i, prompt in enumerate(prompts):
        request = Request(i, list(prompt), SamplingParams(max_tokens=max_tokens), target.info.vocab_size)
        engine.add(request)
        while not request.finished:
            engine.step()
        tokens += len(request.output)
    engine.close()
    return Measured(_survival(counts), counts.rounds, tokens)


def _survival(counts: _Counts) -> tuple[float, ...]:
    """A draft that was cut at the end of an answer counts as deep as it was."""
    found: list[float] = []
    alive = 1.0
    for k, (reached, drafted) in enumerate(zip(counts.reached, counts.drafted, strict=True)):
        before = counts.reached[k - 1] if k else drafted
        alive *= min(reached / before, 1.0) if before else 0.0
        found.append(alive)
    return tuple(found)


def predict(measured: Measured, skip: SkipSet, costs: RoundCosts) -> Predicted:
    """The depth with most tokens a second, at least 1: sets that do not pay are compared as well."""
    draft, plain, tokens = costs.draft.seconds(skip), 1 / (costs.passes[0] + costs.rest), 1.0
    found: list[Predicted] = []
    for depth, alive in enumerate(measured.survival, 1):
        tokens += alive
        rate = tokens / (costs.passes[depth] + depth * draft + costs.rest)
        found.append(Predicted(depth, rate, rate / plain))
    return max(found, key=lambda each: each.tokens_per_second)
