"""One prompt at a time: there is room for it, it is drafted, or it is refused by its number."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.bench.study.single_prompt import SPARE, ask, engine, need_prompts
from draftwood.core.recipe import Recipe
from draftwood.core.verdict import Outcome
from draftwood.errors import OptionError
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    return load(str(folder), dtype="float32")


@pytest.fixture
def recipe(loaded: Loaded) -> Recipe:
    return recipes.build("speculative_sampling:draft=first:1", runner_of(loaded))


def test_a_slot_holds_the_longest_prompt_its_answer_and_trees(loaded: Loaded, recipe: Recipe) -> None:
    assert engine(loaded, recipe, [[1] * 9, [2]], 6).engine.config.max_model_len == 9 + 6 + SPARE
    assert engine(loaded, recipe, [[1]], 6, spare=10).engine.config.max_model_len == 17
    most = loaded.info.max_positions
    assert engine(loaded, recipe, [[1]], most).engine.config.max_model_len == most


def test_a_watcher_sees_the_drafts_of_the_prompt(loaded: Loaded, recipe: Recipe) -> None:
    seen: list[int] = []

    def watch(rnd: Any, outcome: Outcome, passes: Any) -> None:
        seen.append(sum(outcome.drafted))

    llm = engine(loaded, replace(recipe, watch=(watch,)), [[1, 2, 3]], 6)
    ask(llm, [1, 2, 3], 0, max_tokens=6)
    assert sum(seen) > 0
    before = len(seen)
    ask(llm, (1, 2), 1, max_tokens=6)
    assert len(seen) > before, "the same engine answers again"


def test_what_was_not_drafted_is_refused_by_its_number(loaded: Loaded, recipe: Recipe, monkeypatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no such draft")

    monkeypatch.setattr(type(recipe.drafter), "propose", broken)
    with pytest.raises(OptionError, match=r"^prompt 7 could not be drafted: .*no such draft"):
        ask(engine(loaded, recipe, [[1, 2]], 6), [1, 2], 6, max_tokens=6)


def test_no_prompts_are_refused() -> None:
    need_prompts([[1]])
    with pytest.raises(OptionError, match="no prompts\nhint: at least one"):
        need_prompts([])
