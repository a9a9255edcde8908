"""Recorded runs of a tiny model: traces in memory, with the requests that made them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftwood import recipes
from draftwood.bench.trace.recorder import Recorder
from draftwood.bench.trace.records import Header, Record
from draftwood.bench.trace.trace import Trace, collect
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve

V = 61
MODEL = tiny_runner(1)


def header(recipe: str = "prompt_lookup", **fields: Any) -> Header:
    return Header(
        **{
            "model": "tiny",
            "fingerprint": "f00d",
            "backend": "float64",
            "recipe": recipe,
            "options": [],
            "rule": "Match",
            "lossless": True,
            "vocab_size": V,
            "max_model_len": 256,
            "max_num_seqs": 4,
            "max_prefill_tokens": 512,
            "tokenizer": "",
            "on_host": True,
            **fields,
        }
    )


def prompts(count: int) -> list[list[int]]:
    """Few different tokens, in the answers too, so that copies of the text are often right and often wrong."""
    rng = random.Random(3)
    return [[rng.randrange(4) for _ in range(rng.randrange(12, 24))] for _ in range(count)]


def params(count: int, tokens: int = 24, **options: Any) -> list[SamplingParams]:
    few = {token: 9.0 for token in range(4)}
    return [SamplingParams(seed=i, max_tokens=tokens, **{"logit_bias": few, **options}) for i in range(count)]


def recorded(
    recipe: str | Recipe,
    count: int = 6,
    *,
    slots: int = 4,
    options: Sequence[SamplingParams] | None = None,
    texts: Sequence[Sequence[int]] | None = None,
    **run: Any,
) -> tuple[list[Request], list[Header | Record]]:
    """The requests of a run, and the records of its trace."""
    built = recipes.build(recipe, MODEL) if isinstance(recipe, str) else recipe
    found: list[Header | Record] = [
        header(recipe if isinstance(recipe, str) else "tiny", rule=type(built.verifier).__name__, max_num_seqs=slots)
    ]
    recorder = Recorder(found.append)
    engine = make_engine(MODEL, replace(built, record=(recorder,)), slots=slots)
    asked = texts or prompts(count)
    requests = serve(engine, asked, options or params(len(asked)), **run)
    recorder.flush()
    assert not engine.failed_watchers
    return requests, found


def traced(recipe: str | Recipe, *given: Any, **more: Any) -> tuple[list[Request], Trace]:
    requests, found = recorded(recipe, *given, **more)
    return requests, collect(found, "test")


def totals(requests: Sequence[Request]) -> tuple[int, int, tuple[int, int, int], int]:
    """Passes, tokens, rounds that accepted all, some and none, and drafted tokens, as the requests counted them."""
    stats = [r.stats for r in requests]
    every, some, none = (sum(getattr(s, f"rounds_{kind}") for s in stats) for kind in ("all", "some", "none"))
    drafted = sum(s.draft_tokens for s in stats)
    return sum(s.target_passes for s in stats), sum(len(r.output) for r in requests), (every, some, none), drafted
