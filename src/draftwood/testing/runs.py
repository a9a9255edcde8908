"""Whole runs of an engine over a small model: requests that arrive, leave and are pushed out while others decode."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.core.config import EngineConfig
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.engine.engine import Engine
from draftwood.testing.exact import Free


def make_engine(
    target: Runner,
    recipe: Recipe,
    *,
    slots: int = 8,
    capacity: int = 256,
    max_cache_tokens: int | None = None,
    chunk: int = 512,
    disable_slow_drafts: bool = False,
) -> Engine:
    """An engine with a cache of its own. Beside tiny targets every drafter is slow, so none is disabled for it."""
    config = EngineConfig(max_num_seqs=slots, max_prefill_tokens=chunk, disable_slow_drafts=disable_slow_drafts)
    runner = target.open(slots, capacity, max_cache_tokens, recipe.needs.pools)
    return Engine(runner, recipe, cost_model=Free(), config=config)


def serve(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams] | SamplingParams,
    *,
    arrive: Mapping[int, int] | None = None,
    cancel: Mapping[int, int] | None = None,
    eos: tuple[int, ...] = (),
    **fields: Any,
) -> list[Request]:
    """Run to the end. `arrive[i]`: the round in which request i is added (0 if not named); `cancel[i]`: when it leaves."""
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    requests = [
        Request(i, list(prompt), p, engine.info.vocab_size, eos=eos, **fields)
        for i, (prompt, p) in enumerate(zip(prompts, each, strict=True))
    ]
    arrive, cancel = dict(arrive or {}), dict(cancel or {})
    waiting = sorted(range(len(requests)), key=lambda i: arrive.get(i, 0))
    turn = 0
    while waiting or engine.has_work:
        while waiting and arrive.get(waiting[0], 0) <= turn:
            engine.add(requests[waiting.pop(0)])
        for i, at in cancel.items():
            if at == turn:
                engine.cancel(requests[i])
        engine.step()
        turn += 1
    return requests
