"""What is fixed stays fixed, what is published is published, and the rest is chosen and said."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood import recipes
from draftwood.controllers.estimates.acceptance import DEPTHS, NODES
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.sized import Sized
from draftwood.sizing import choose_size, remembered
from draftwood.sizing.choose_size import Asked, Choice
from tree_recipes import HEADS, TARGET, same_as_plain, with_head


@pytest.fixture(params=["eagle3", "medusa", "hydra"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    weights = with_head(request.param, tmp_path).partition("weights=")[2]
    return request.param, weights


def test_with_no_option_the_size_is_chosen_and_the_notes_say_it(head: tuple[str, str]) -> None:
    name, weights = head
    recipe: Any = recipes.build(name, TARGET, weights=weights)
    assert isinstance(recipe.controller, Sized) and recipe.controller.cost_model.pass_seconds(1) > 0
    (note,) = recipe.notes
    assert "chosen for" in note and ("expected" in note or "no draft pays" in note)


def test_lengths_of_drawn_chains_are_kept_because_the_text_of_a_seed_depends_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "fingerprint", lambda target: "known")
    speeds = iter([np.array([1.2, 1.1]), np.array([1.1, 1.3]), np.array([1.0, 0.9])])
    monkeypatch.setattr(choose_size, "gains", lambda *given: next(speeds))
    drafter = recipes.drafter("speculative_sampling:draft=first:2", TARGET)
    sizes = ((1, 1), (3, 3), (3, 8))
    found = choose_size.drawn_depths("eagle3", TARGET, drafter, "auto", sizes)
    assert found == ((0.5, 1), (0.8, 3), (1.0, 0)), "a gain below 3 % is none"
    assert choose_size.drawn_depths("eagle3", TARGET, drafter, "auto", sizes) == found, "asked again, nothing is timed"
    (file,) = (tmp_path / "cache" / "drawn").iterdir()
    file.write_text('{"found": [9, 9, 9]}')
    speeds = iter([np.array([1.0, 2.0])] * 3)
    again = choose_size.drawn_depths("eagle3", TARGET, drafter, "auto", sizes)
    assert [depth for _, depth in again] == [3, 3, 3], "what is not among the sizes is chosen anew"
    assert choose_size.drawn_depths("eagle3", TARGET, drafter, "auto", ((3, 8),)) == ((1.0, 0),), "no chain among them"


def test_depth_and_nodes_together_fix_the_size(head: tuple[str, str]) -> None:
    name, weights = head
    recipe: Any = recipes.build(name, TARGET, weights=weights, depth=2, nodes=5)
    assert recipe.controller == Fixed(2, 5) and recipe.notes == ("tree of 5 nodes, depth 2 (fixed)",)


def test_one_of_them_leaves_the_other_to_choose(head: tuple[str, str]) -> None:
    name, weights = head
    by_nodes: Any = recipes.build(name, TARGET, weights=weights, nodes=5).controller
    assert {n for _, n in by_nodes.sizes} == {5} and len(by_nodes.sizes) > 1
    by_depth: Any = recipes.build(name, TARGET, weights=weights, depth=2).controller
    assert {d for d, _ in by_depth.sizes} == {2} and len(by_depth.sizes) > 3
    chains: Any = recipes.build(name, TARGET, weights=weights, beam=1)
    assert all(d == n for d, n in chains.controller.sizes) and chains.policy.beam == 1


def test_published_sizes_are_one_word_away(head: tuple[str, str]) -> None:
    name, weights = head
    recipe: Any = recipes.build(name, TARGET, weights=weights, size="paper")
    assert recipe.controller.nodes >= 60 and recipe.policy.beam == 10 and "as published" in recipe.notes[0]
    smaller: Any = recipes.build(name, TARGET, weights=weights, size="paper", nodes=20)
    assert smaller.controller.nodes == 20 and smaller.controller.depth == recipe.controller.depth


def test_the_text_of_a_chosen_size_is_that_of_plain_decoding(head: tuple[str, str]) -> None:
    name, weights = head
    same_as_plain(name, weights=weights)


def test_candidates_are_chains_and_trees_of_more_nodes_than_levels() -> None:
    sizes = Asked(None, None, None).sizes(4)
    assert {d for d, _ in sizes} == {1, 2, 3, 4} and all(n >= d for d, n in sizes)
    assert len(set(sizes)) == len(sizes) and (3, 3) in sizes and (3, 60) in sizes
    assert max(DEPTHS) == 8 and max(NODES) == 60 and set(HEADS) == {"eagle3", "medusa", "hydra"}


def test_a_size_that_is_expected_to_be_slower_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="draftwood"):
        Choice((2, 4), 1.02).note("some", TARGET)
        assert not caplog.records
        note = Choice((2, 4), 0.7).note("some", TARGET)
    assert note in caplog.text and "plain decoding is faster here" in caplog.text


@pytest.mark.parametrize("asked", [{"nodes": 0}, {"depth": 0}, {"depth": 3, "nodes": 0}])
def test_no_levels_or_no_nodes_are_plain_decoding(head: tuple[str, str], asked: dict[str, int]) -> None:
    name, weights = head
    recipe: Any = recipes.build(name, TARGET, weights=weights, **asked)
    assert recipe.controller.depth * recipe.controller.nodes == 0 and recipe.notes == ("plain decoding (fixed)",)


def test_published_sizes_with_one_number_of_ones_own_are_not_called_published(head: tuple[str, str]) -> None:
    name, weights = head
    assert "fixed" in recipes.build(name, TARGET, weights=weights, size="paper", depth=2).notes[0]
