"""Rounds of a few sizes, timed on this machine before the first request: what a cost model starts with."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch

from draftwood.controllers.estimates.acceptance import Size
from draftwood.core.config import EngineConfig
from draftwood.core.forward import Needs
from draftwood.core.host import on_host
from draftwood.core.limit import CostEstimate, Limit, Load
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome, Times
from draftwood.engine.engine import Engine
from draftwood.sizing.cpu_use import CpuUse, taken
from draftwood.sizing.remembered import Timed

SECONDS = 0.35  # after which every size is tried at most once more
LONGEST = 1.5  # seconds after which no round begins, for targets and trees that are slow
SIZES: tuple[Size, ...] = ((0, 0), (2, 2), (2, 4), (5, 5), (4, 12), (5, 32))
ROUNDS = 7  # of a size at most; one below the median counts
LENGTH = 256  # tokens of the text, one in eight of them prompt

_DONE: WeakKeyDictionary[Any, dict[object, Timed[tuple[Times, ...]]]] = WeakKeyDictionary()


@dataclass(slots=True)
class Record:
    """A cost model that keeps the times of every round and estimates nothing."""

    times: list[Times] = field(default_factory=list[Times])

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return 0.0

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return 0.0

    def rest_seconds(self) -> float:
        return 0.0

    def observe(self, times: Times) -> None:
        self.times.append(times)


def trials(
    target: Runner, recipe: Recipe, key: str, sizes: Sequence[Size] = SIZES, temperature: float = 0.0
) -> tuple[Times, ...]:
    """A fast round of each size, once per target, `key` (which drafter), temperature and number of threads. A drafter that
    fails here leaves fewer rounds; the first request reports why."""
    return timed_trials(target, recipe, key, sizes, temperature).found


def timed_trials(
    target: Runner, recipe: Recipe, key: str, sizes: Sequence[Size] = SIZES, temperature: float = 0.0
) -> Timed[tuple[Times, ...]]:
    """The same, with the cores that other processes took meanwhile."""
    known = of_target(_DONE, target)
    which = key, torch.get_num_threads(), tuple(sizes), temperature
    if which not in known:
        use = CpuUse()
        times = tuple(_timed(target, recipe, sizes, temperature))
        known[which] = Timed(times, taken(use.foreign(), torch.get_num_threads()))
    return known[which]


def of_target(store: WeakKeyDictionary[Any, dict[Any, Any]], target: Runner) -> dict[Any, Any]:
    """What is remembered of a target, for as long as it exists."""
    return store.setdefault(target.info, {})


@dataclass(slots=True)
class _Turn:
    """A controller that asks for the size whose turn it is."""

    size: Size = (0, 0)
    needs: Needs = Needs()

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        depth, nodes = self.size
        return Limit.of([depth] * rnd.batch, [nodes] * rnd.batch, rnd.device)

    def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None


def trial_engine(target: Runner, recipe: Recipe, length: int, cost_model: CostEstimate | None = None) -> Engine:
    """An engine for one sequence of at most `length` tokens."""
    config = EngineConfig(max_num_seqs=1, disable_slow_drafts=False)
    runner = target.open(1, min(length, target.info.max_positions), pools=recipe.needs.pools)
    return Engine(runner, recipe, cost_model=cost_model or Record(), config=config)


def _timed(target: Runner, recipe: Recipe, sizes: Sequence[Size], temperature: float) -> list[Times]:
    turn, record = _Turn(), Record()
    engine = trial_engine(target, replace(recipe, controller=turn), LENGTH, record)
    length = min(LENGTH, target.info.max_positions)
    prompt = [i % target.info.vocab_size for i in range(1, 1 + length // 8)]
    request = Request(
        0,
        prompt,
        SamplingParams(max_tokens=length, temperature=temperature, seed=0, ignore_eos=True),
        target.info.vocab_size,
    )
    engine.add(request)
    engine.step()  # the prompt
    rounds: dict[Size, list[Times]] = {size: [] for size in sizes}
    if not on_host(target.info.device):
        # An accelerator captures the first round of each size, which takes as long as hundreds of others.
        for _, turn.size in product(range(2), sizes):
            engine.step()
    started = perf_counter()
    for i, turn.size in product(range(ROUNDS), sizes):  # in turn, so that a busy moment does not hit one size alone
        record.times.clear()
        if not request.finished and not request.stats.disabled:
            engine.step()
        # A round in which the drafter had nothing to go by is of another size.
        rounds[turn.size] += [t for t in record.times if bool(turn.size[1]) == bool(t.draft_nodes)]
        spent = perf_counter() - started
        if spent > LONGEST or (spent > SECONDS and i > 1 and turn.size == sizes[-1]):
            break
    engine.close()
    warm = [each[1:] or each for each in rounds.values() if each]  # the first of each warms up
    # Below the median: in the first rounds of a process everything takes longer than later.
    return [sorted(each, key=lambda t: t.total)[(len(each) - 1) // 3] for each in warm]
