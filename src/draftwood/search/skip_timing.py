"""The best sets of a search, timed: real answers with chains of the predicted depth, in turn with plain decoding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.layers.skipped import SkippedLayers
from draftwood.drafters.nothing import Nothing
from draftwood.engine.engine import Engine
from draftwood.search.skip_search import Tried
from draftwood.sizing.trials import trial_engine
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match


@dataclass(slots=True)
class Timed:
    """`ratios`: plain decoding's seconds over this set's, by prompt."""

    tried: Tried
    ratios: list[float] = field(default_factory=list[float])
    same_text: bool = True

    @property
    def speed_up(self) -> float:
        return median(self.ratios)


def time_best(
    target: Runner,
    best: Sequence[Tried],
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    say: Callable[[str], None] = lambda _: None,
) -> list[Timed]:
    """Every prompt by plain decoding and by every set, before the next prompt; the fastest set first."""
    longest = max(map(len, prompts)) + max_tokens + 16
    plain = _engine(target, Nothing(), 0, longest)
    engines = [_engine(target, SkippedLayers(each.skip), each.predicted.depth, longest) for each in best]
    found = [Timed(each) for each in best]
    _answer(plain, target, prompts[0], 2)  # code that runs for the first time takes longer
    for i, prompt in enumerate(prompts):
        seconds, text = _answer(plain, target, prompt, max_tokens)
        for engine, each in zip(engines, found, strict=True):
            own, answer = _answer(engine, target, prompt, max_tokens)
            each.ratios.append(seconds / own)
            each.same_text = each.same_text and answer == text
        say(f"{i + 1}/{len(prompts)} prompts timed")
    for engine in (plain, *engines):
        engine.close()
    return sorted(found, key=lambda each: -each.speed_up)


def _engine(target: Runner, drafter: Drafter, depth: int, length: int) -> Engine:
    parts = Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(depth))
    return trial_engine(target, parts, length)


def _answer(engine: Engine, target: Runner, prompt: Sequence[int], max_tokens: int) -> tuple[float, list[int]]:
    engine.runner.forget()
    request = Request(0, list(prompt), SamplingParams(max_tokens=max_tokens), target.info.vocab_size)
    started = perf_counter()
    engine.add(request)
    while not request.finished:
        engine.step()
    return perf_counter() - started, list(request.output)
