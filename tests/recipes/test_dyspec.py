"""The most valuable draw first, from another recipe's drafter."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.errors import CompositionError, OptionError
from tree_recipes import HALF, TARGET, WHOLE, same_as_plain, served, ways_and_heads, with_head

WAYS: list[dict[str, Any]] = [{}, {"ahead": 1}, {"threshold": 0.05}, {"nodes": 3, "depth": 2}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_greedy_text_is_that_of_plain_decoding(way: dict[str, Any]) -> None:
    assert same_as_plain("dyspec", inner=HALF, **way) > 0


@pytest.mark.parametrize(("way", "inner"), ways_and_heads(WAYS))
def test_trained_heads_can_draft(way: dict[str, Any], inner: str, tmp_path: Path) -> None:
    head = with_head(inner, tmp_path)
    assert same_as_plain("dyspec", inner=head, **way) > 0
    assert sum(r.stats.draft_tokens for r in served("dyspec", inner=head, temperature=1.0, **way)) > 0


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_draft_that_is_the_target_is_accepted_to_the_end_of_a_path(way: dict[str, Any]) -> None:
    for temperature in (0.0, 1.0):
        done = served("dyspec", inner=WHOLE, temperature=temperature, tokens=16, **way)
        assert all(r.stats.rounds_none == 0 for r in done)


def test_a_threshold_leaves_nothing_to_run_ahead() -> None:
    with pytest.raises(OptionError, match="ahead"):
        recipes.build("dyspec", TARGET, inner=HALF, threshold=0.1, ahead=2)


def test_a_drafter_that_cannot_draw_is_refused() -> None:
    with pytest.raises(CompositionError, match="NGram"):
        recipes.build("dyspec", TARGET, inner="prompt_lookup")


def test_names_carry_options() -> None:
    recipe: Any = recipes.build(f"dyspec:threshold=0.02:nodes=30:inner={HALF}", TARGET)
    assert recipe.policy.least == 0.02 and recipe.controller.nodes == 30


def test_running_ahead_never_changes_the_text() -> None:
    one, many = (served("dyspec", inner=HALF, temperature=1.0, ahead=ahead) for ahead in (1, 6))
    assert [r.output for r in one] == [r.output for r in many]
