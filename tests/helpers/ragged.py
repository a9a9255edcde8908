"""A ragged batch of eight: requests come while others decode, one leaves, and the cache is too small for all of them."""

from typing import Any

from draftwood import recipes
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve

TARGET = tiny_runner(2)
PROMPTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10, 11], [12], [13, 14, 15, 16], [3, 2, 1], [9, 9]]
PARAMS = [8, 30, 22, 40, 5, 26, 34, 12]


def params(temperature: float, **options: Any) -> list[SamplingParams]:
    each = enumerate(PARAMS)
    return [SamplingParams(max_tokens=most, temperature=temperature, seed=i, **options) for i, most in each]


def ragged(recipe: Recipe, temperature: float, slots: int = 8, cache: int = 70) -> list[Request]:
    """All eight at once; request 2 is cancelled after five rounds."""
    engine = make_engine(TARGET, recipe, slots=slots, capacity=64, max_cache_tokens=cache)
    arrive = {i: 2 * (i % 4) for i in range(8)}
    return serve(engine, PROMPTS, params(temperature), arrive=arrive, cancel={2: 11})


def alone(recipe: Recipe, temperature: float) -> list[Request]:
    """Each in an engine of its own."""
    found: list[Request] = []
    for prompt, own in zip(PROMPTS, params(temperature), strict=True):
        found += serve(make_engine(TARGET, recipe, slots=1, capacity=64), [prompt], own)
    return found


def check_same_text(recipe: Recipe, temperature: float, **more: Any) -> list[Request]:
    """Alone and in the batch what plain decoding writes alone; the requests of the batch."""
    plain = [r.output for r in alone(recipes.build("autoregressive", TARGET), temperature)]
    assert [r.output for r in alone(recipe, temperature)] == plain
    together = ragged(recipe, temperature, **more)
    for i, request in enumerate(together):
        assert request.stats.disabled is None, request.stats.disabled
        own = plain[i]
        assert request.output == (own[: len(request.output)] if i == 2 else own), f"request {i}"
    assert sum(r.stats.preempted for r in together) > 0, "the cache was too small on purpose"
    return together
