"""Acceptance by sibling, measured with a target and a drafter at their first use, then kept in the user's cache."""

import hashlib
import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Drafter, Model
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nets.find import fingerprint
from draftwood.models.loading.folder_cache import cache_dir
from draftwood.models.loading.origin import origin_of
from draftwood.sizing.ranks import Counting, Ranks, tried_tree
from draftwood.sizing.trials import of_target, trial_engine

SECONDS = 4.0  # after which no further question is asked
WIDTH, NODES, DEPTH, TOKENS = 4, 24, 6, 32  # of the tree that is tried, and of an answer
FALLBACK = (0.5,)  # where nothing was accepted: a chain

log = logging.getLogger("draftwood")
_KNOWN: WeakKeyDictionary[Any, dict[str, tuple[float, ...]]] = WeakKeyDictionary()


def measured_acceptance(target: Model, drafter: Drafter, name: str, temperature: float) -> tuple[float, ...]:
    """`name`: the drafter's, with its options. Measured once for each target, name and temperature."""
    known: dict[str, tuple[float, ...]] = of_target(_KNOWN, target)
    key = f"{name} {temperature:g}"
    if key not in known:
        file = _file(target, key)
        known[key] = _read(file) or _measured(target, drafter, name, temperature)
        _write(file, key, known[key])
    return known[key]


def _measured(target: Model, drafter: Drafter, name: str, temperature: float) -> tuple[float, ...]:
    log.info("measuring how often guesses of %s are accepted at temperature %g, once", name, temperature)
    tree = tried_tree(WIDTH, NODES, DEPTH)
    rule, started = Counting.of(tree), perf_counter()
    recipe = Recipe(drafter=drafter, policy=tree, verifier=rule, controller=Fixed(tree.depth, tree.num_nodes))
    recipe.check(target)
    for i, prompt in enumerate(_prompts(target)):
        if perf_counter() - started > SECONDS:
            break
        params = SamplingParams(temperature=temperature, seed=i, max_tokens=TOKENS)
        request = Request(i, prompt, params, target.vocab_size)
        engine = trial_engine(target, recipe, len(prompt) + TOKENS + 2 * NODES)
        engine.add(request)
        while not request.finished:
            engine.step()
    found = Ranks(rule.tried, rule.kept).acceptance() if any(map(any, rule.kept)) else ()
    return tuple(round(rate, 3) for rate in found if rate >= 0.001) or FALLBACK


def _prompts(target: Model) -> list[list[int]]:
    """Questions in the target's own template; a single token for a model without a tokenizer."""
    origin = origin_of(target)
    if origin is None:
        return [[1 % target.vocab_size]]
    lines = Path(__file__).with_name("questions.txt").read_text("utf-8").splitlines()
    return [origin.tokenizer.encode_chat([{"role": "user", "content": line}]) for line in lines]


def _file(target: Model, key: str) -> Path | None:
    """None for targets that cannot be told apart."""
    mark = fingerprint(target)
    if not mark:
        return None
    return cache_dir() / "acceptance" / f"{mark}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _read(file: Path | None) -> tuple[float, ...]:
    try:
        found = json.loads(file.read_text("utf-8"))["acceptance"] if file is not None else ()
        return tuple(float(rate) for rate in found)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _write(file: Path | None, key: str, acceptance: tuple[float, ...]) -> None:
    """By one rename, so that nobody reads half of it. A cache that cannot be written costs only the next measurement."""
    if file is None or file.exists():
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"of": key, "acceptance": acceptance}), "utf-8")
        part.rename(file)
