"""A static tree for given acceptance, from another recipe's drafter."""

import re
from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.errors import CompositionError, OptionError
from tree_recipes import HALF, TARGET, WHOLE, same_as_plain, served, ways_and_heads, with_head

WAYS: list[dict[str, Any]] = [{}, {"nodes": 5}, {"acceptance": (0.4, 0.3, 0.2), "depth": 3}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_greedy_text_is_that_of_plain_decoding(way: dict[str, Any]) -> None:
    assert same_as_plain("sequoia", inner=HALF, **way) > 0


@pytest.mark.parametrize(("way", "inner"), ways_and_heads(WAYS))
def test_trained_heads_can_draft(way: dict[str, Any], inner: str, tmp_path: Path) -> None:
    head = with_head(inner, tmp_path)
    assert same_as_plain("sequoia", inner=head, **way) > 0
    assert sum(r.stats.draft_tokens for r in served("sequoia", inner=head, temperature=1.0, **way)) > 0


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_draft_that_is_the_target_is_accepted_to_the_end_of_a_path(way: dict[str, Any]) -> None:
    for temperature in (0.0, 1.0):
        done = served("sequoia", inner=WHOLE, temperature=temperature, tokens=16, **way)
        assert all(r.stats.rounds_none == 0 for r in done)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [((0.1, 0.5), "falling"), (0.5, "a list with commas, each a number from 0 to 1"), (("0.5",), "a list")],
)
def test_acceptance_that_is_none_is_refused(wrong: Any, hint: str) -> None:
    with pytest.raises(OptionError, match=f"^sequoia: acceptance cannot be {re.escape(repr(wrong))}\nhint: {hint}"):
        recipes.build("sequoia", TARGET, inner=HALF, acceptance=wrong)


def test_acceptance_may_be_spelt_as_on_the_command_line() -> None:
    spelt, given = (recipes.build("sequoia", TARGET, inner=HALF, acceptance=a) for a in ("0.5,0.2", (0.5, 0.2)))
    assert spelt.policy == given.policy
    with pytest.raises(
        OptionError, match=r"^sequoia: acceptance cannot be 'half,0.2'\nhint: a list with commas, each a number"
    ):
        recipes.build("sequoia", TARGET, inner=HALF, acceptance="half,0.2")


def test_size_and_acceptance_that_are_not_given_are_measured_and_said() -> None:
    recipe: Any = recipes.build("sequoia", TARGET, inner=WHOLE)
    assert len(set(recipe.policy.parents)) == len(recipe.policy.parents), "of a draft that is always right, a chain"
    assert "chosen for" in recipe.notes[0]
    eight: Any = recipes.build("sequoia", TARGET, inner=HALF, acceptance=(0.5, 0.2), nodes=8)
    assert eight.controller.nodes == 8
    assert recipes.build("sequoia", TARGET, inner=HALF, acceptance=(0.5, 0.2), nodes=8, depth=4).notes == ()


def test_size_that_is_none_is_refused_in_its_name() -> None:
    with pytest.raises(OptionError, match=r"^sequoia: nodes cannot be -1"):
        recipes.build("sequoia", TARGET, inner=HALF, nodes=-1)


def test_a_drafter_that_cannot_draw_is_refused() -> None:
    with pytest.raises(CompositionError, match="NGram"):
        recipes.build("sequoia", TARGET, inner="prompt_lookup")


def test_names_carry_options() -> None:
    recipe: Any = recipes.build(f"sequoia:acceptance=0.6,0.2,0.1:nodes=4:depth=8:inner={HALF}", TARGET)
    assert recipe.policy.parents == (0, 0, 1, 3) and recipe.controller.depth == 3
