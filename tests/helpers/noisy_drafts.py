"""Engines over a tiny model whose drafts are often right, with a controller and watchers of the test's choice."""

import random
from typing import Any

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nothing import Nothing
from draftwood.engine.engine import Engine
from draftwood.testing.parts.oracle_drafter import NoisyOracle
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

V = 61
MODEL = tiny_runner(1)


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(V) for _ in range(rng.randrange(4, 12))] for _ in range(count)]


def options(count: int) -> list[SamplingParams]:
    return [SamplingParams(temperature=1.0, seed=i, max_tokens=16) for i in range(count)]


def plain(count: int) -> list[list[int]]:
    recipe = Recipe(drafter=Nothing(), policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(0))
    return [r.output for r in serve(make_engine(MODEL, recipe), prompts(count), options(count))]


def drafted(count: int, controller: Any, watch: tuple[Any, ...] = (), slots: int = 2) -> Engine:
    answers = {tuple(p): a for p, a in zip(prompts(count), plain(count), strict=True)}
    oracle = NoisyOracle(answers, V, 0.7)
    recipe = Recipe(drafter=oracle, policy=Chain(Draw.GIVEN), verifier=Match(), controller=controller, watch=watch)
    return make_engine(MODEL, recipe, slots=slots)


def rounds(requests: list[Request]) -> tuple[int, ...]:
    return tuple(sum(getattr(r.stats, f"rounds_{k}") for r in requests) for k in ("all", "some", "none"))
