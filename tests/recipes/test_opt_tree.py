"""The tree a draft expects most from, from another recipe's drafter."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.errors import OptionError
from tree_recipes import HALF, TARGET, WHOLE, same_as_plain, served, ways_and_heads, with_head

WAYS: list[dict[str, Any]] = [{}, {"delta": 0.0, "nodes": 6}, {"depth": 2}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_greedy_text_is_that_of_plain_decoding(way: dict[str, Any]) -> None:
    assert same_as_plain("opt_tree", inner=HALF, **way) > 0


@pytest.mark.parametrize(("way", "inner"), ways_and_heads(WAYS))
def test_trained_heads_can_draft(way: dict[str, Any], inner: str, tmp_path: Path) -> None:
    head = with_head(inner, tmp_path)
    assert same_as_plain("opt_tree", inner=head, **way) > 0
    assert sum(r.stats.draft_tokens for r in served("opt_tree", inner=head, temperature=1.0, **way)) > 0


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_draft_that_is_the_target_is_accepted_to_the_end_of_a_path(way: dict[str, Any]) -> None:
    for temperature in (0.0, 1.0):
        done = served("opt_tree", inner=WHOLE, temperature=temperature, tokens=16, **way)
        assert temperature or all(r.stats.rounds_none == 0 for r in done)  # a sampled target may leave any given tree


def test_seeded_text_is_that_of_plain_decoding() -> None:
    got, plain = served("opt_tree", inner=HALF, temperature=1.0), served("autoregressive", temperature=1.0)
    assert [r.output for r in got] == [r.output for r in plain]


def test_names_carry_options() -> None:
    recipe: Any = recipes.build(f"opt_tree:delta=0.2:nodes=30:inner={HALF}", TARGET)
    assert recipe.policy.delta == 0.2 and recipe.controller.nodes == 30
    with pytest.raises(OptionError, match="delta"):
        recipes.build("opt_tree", TARGET, inner=HALF, delta=-1.0)
