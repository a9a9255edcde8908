"""Acceptance by sibling, measured with a target and a drafter at their first use, then kept in the user's cache."""

import logging
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.sizing.ranks import Counting, Ranks, tried_tree
from draftwood.sizing.remembered import remembered
from draftwood.sizing.trials import of_target, trial_engine

SECONDS = 4.0  # after which no further question is asked
WIDTH, NODES, DEPTH, TOKENS = 4, 24, 6, 32  # of the tree that is tried, and of an answer
FALLBACK = (0.5,)  # where nothing was accepted: a chain

log = logging.getLogger("draftwood")
_KNOWN: WeakKeyDictionary[Any, dict[str, tuple[float, ...]]] = WeakKeyDictionary()


def measured_acceptance(target: Runner, drafter: Drafter, name: str, temperature: float) -> tuple[float, ...]:
    """`name`: the drafter's, with its options. Measured once for each target, name and temperature."""
    known: dict[str, tuple[float, ...]] = of_target(_KNOWN, target)
    key = f"{name} {temperature:g}"
    if key not in known:
        find = partial(_measured, target, drafter, name, temperature)
        known[key] = remembered(target, "acceptance", key, _rates, find)
    return known[key]


def _measured(target: Runner, drafter: Drafter, name: str, temperature: float) -> tuple[float, ...]:
    log.info("measuring how often guesses of %s are accepted at temperature %g, once", name, temperature)
    tree = tried_tree(WIDTH, NODES, DEPTH)
    rule, started = Counting.of(tree), perf_counter()
    recipe = Recipe(drafter=drafter, policy=tree, verifier=rule, controller=Fixed(tree.depth, tree.num_nodes))
    recipe.check(target)
    for i, prompt in enumerate(prompts(target)):
        if perf_counter() - started > SECONDS:
            break
        params = SamplingParams(temperature=temperature, seed=i, max_tokens=TOKENS)
        request = Request(i, prompt, params, target.info.vocab_size)
        engine = trial_engine(target, recipe, len(prompt) + TOKENS + 2 * NODES)
        engine.add(request)
        while not request.finished:
            engine.step()
    found = Ranks(rule.tried, rule.kept).acceptance() if any(map(any, rule.kept)) else ()
    return tuple(round(rate, 3) for rate in found if rate >= 0.001) or FALLBACK


def prompts(target: Runner) -> list[list[int]]:
    """Questions in the target's own template; a single token for a model without a tokenizer."""
    tokenizer = target.info.tokenizer
    if tokenizer is None:
        return [[1 % target.info.vocab_size]]
    lines = Path(__file__).with_name("questions.txt").read_text("utf-8").splitlines()
    return [tokenizer.encode_chat([{"role": "user", "content": line}]) for line in lines]


def _rates(found: Any) -> tuple[float, ...]:
    return tuple(float(rate) for rate in found)
