"""Siblings without replacement, by fixed widths or as a beam."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.errors import CompositionError, OptionError
from tree_recipes import HALF, TARGET, WHOLE, same_as_plain, served, ways_and_heads, with_head

WAYS: list[dict[str, Any]] = [{}, {"method": "c"}, {"beam": 2, "depth": 3}, {"method": "c", "widths": (3, 1)}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_greedy_text_is_that_of_plain_decoding(way: dict[str, Any]) -> None:
    assert same_as_plain("rsd", inner=HALF, **way) > 0


@pytest.mark.parametrize(("way", "inner"), ways_and_heads(WAYS))
def test_trained_heads_can_draft(way: dict[str, Any], inner: str, tmp_path: Path) -> None:
    head = with_head(inner, tmp_path)
    assert same_as_plain("rsd", inner=head, **way) > 0
    assert sum(r.stats.draft_tokens for r in served("rsd", inner=head, temperature=1.0, **way)) > 0


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_draft_that_is_the_target_is_accepted_to_the_end_of_a_path(way: dict[str, Any]) -> None:
    for temperature in (0.0, 1.0):
        done = served("rsd", inner=WHOLE, temperature=temperature, tokens=16, **way)
        assert all(r.stats.rounds_none == 0 for r in done)


def test_options_of_the_other_method_are_refused() -> None:
    for wrong in ({"method": "c", "beam": 2}, {"method": "c", "depth": 2}, {"widths": (2,)}, {"method": "x"}):
        with pytest.raises(OptionError, match="method"):
            recipes.build("rsd", TARGET, inner=HALF, **wrong)
    with pytest.raises(OptionError, match=r"widths \(2,\) is used only with method=c\nhint: add method=c"):
        recipes.build("rsd", TARGET, inner=HALF, widths=(2,))


def test_a_drafter_that_cannot_draw_is_refused() -> None:
    with pytest.raises(CompositionError, match="NGram"):
        recipes.build("rsd", TARGET, inner="prompt_lookup")


def test_names_carry_options() -> None:
    recipe: Any = recipes.build(f"rsd:method=c:widths=3,2:inner={HALF}", TARGET)
    assert recipe.policy.widths == (3, 2) and recipe.controller.nodes == 9
    spelt: Any = recipes.build("rsd", TARGET, method="c", widths="3,2", inner=HALF)
    assert spelt.policy == recipe.policy
