"""Rounds are timed once per target, by size, and a drafter that fails leaves none."""

import gc
from typing import Any
from weakref import WeakKeyDictionary

from draftwood.controllers.fixed import Fixed
from draftwood.core.recipe import Recipe
from draftwood.runners.cpu import CpuRunner
from draftwood.sizing import trials as trials_module
from draftwood.sizing.trials import of_target, trials
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import TableModel, random_probs
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

SIZES = ((0, 0), (2, 2), (2, 4))


def recipe(drafter: Any) -> Recipe:
    return Recipe(drafter=drafter, policy=BestFirst(), verifier=Match(), controller=Fixed(0))


def test_each_size_is_timed_as_it_was_drafted() -> None:
    p = random_probs(7, 1)
    target = CpuRunner(TableModel(7, p))
    found = trials(target, recipe(TableDrafter(p)), "table", SIZES)
    assert [(t.draft_passes, t.draft_nodes, t.tokens) for t in found] == [(0, 0, 1), (2, 2, 3), (2, 4, 5)]
    assert all(t["score"] > 0 and not t.prompt_tokens for t in found)


def test_a_drafter_that_raises_leaves_the_plain_round() -> None:
    class Raising(TableDrafter):
        def propose(self, *_: Any) -> Any:
            raise RuntimeError("broken")

    p = random_probs(7, 1)
    assert [t.tokens for t in trials(CpuRunner(TableModel(7, p)), recipe(Raising(p)), "raising", SIZES)] == [1]


def test_a_target_is_timed_once_for_each_drafter() -> None:
    calls = list[str]()

    class Counted(TableDrafter):
        def propose(self, *args: Any) -> Any:
            calls.append("propose")
            return super().propose(*args)

    target = tiny_runner(2)
    drafter = Counted(random_probs(target.info.vocab_size, 1))
    first = trials(target, recipe(drafter), "counted", SIZES)
    count = len(calls)
    assert count and trials(target, recipe(drafter), "counted", SIZES) is first and len(calls) == count
    assert trials(target, recipe(drafter), "another", SIZES) is not first
    again = CpuRunner(target.model, target.info)
    assert trials(again, recipe(drafter), "counted", SIZES) is first, "another runner of the same model"
    assert trials(CpuRunner(target.model), recipe(drafter), "counted", SIZES) is not first, "a model by another name"


def test_what_is_known_of_a_target_goes_with_it() -> None:
    store: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
    target = tiny_runner(2)
    of_target(store, target)["time"] = 1.0
    assert of_target(store, target.open(1, 8)) == {"time": 1.0}, "with a cache or without"
    del target
    gc.collect()
    assert not len(store)


def test_rounds_that_take_too_long_are_not_repeated(monkeypatch: Any) -> None:
    monkeypatch.setattr(trials_module, "LONGEST", 0.0)
    calls = list[str]()

    class Counted(TableDrafter):
        def propose(self, *args: Any) -> Any:
            calls.append("propose")
            return super().propose(*args)

    p = random_probs(7, 1)
    found = trials(CpuRunner(TableModel(7, p)), recipe(Counted(p)), "slow", SIZES)
    assert [t.tokens for t in found] == [1] and not calls
