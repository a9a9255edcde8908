"""A tree that stops where a small net loses its belief; and the published first level, which is lossy and says so."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.errors import CompositionError, OptionError
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from tree_recipes import HALF, TARGET, WHOLE, same_as_plain, served


def net_file(folder: Path, seed: int = 0, **changes: Any) -> str:
    head = random_head("decision", TARGET, seed=seed)
    return str(write_head(folder / f"net{seed}.safetensors", replace(head, **changes)))


@pytest.mark.parametrize("verifier", ["rejection", "traversal"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_greedy_text_is_that_of_plain_decoding(seed: int, verifier: str, tmp_path: Path) -> None:
    assert same_as_plain("dynamic_mcsd", inner=HALF, weights=net_file(tmp_path, seed), verifier=verifier) > 0


def test_the_net_stops_some_rounds_and_not_others(tmp_path: Path) -> None:
    def rounds(**options: Any) -> list[int]:
        """How many rounds were drafted to each depth, of all rows together."""
        done = served("dynamic_mcsd", inner=HALF, temperature=1.0, tokens=40, **options)
        found = torch.zeros(5, dtype=torch.int64)
        for r in done:
            found[: len(r.stats.drafted)] += torch.tensor(r.stats.drafted)
        return found.tolist()

    weights = net_file(tmp_path, seed=3)  # one that is of two minds
    never, most = rounds(weights=weights, threshold=1.0), rounds(weights=weights, threshold=0.0)
    assert never[0] > 0 and not any(never[1:]), "one level is always drafted; a chance is never above 1"
    assert most == rounds(weights="none") and most[4] > 0
    some = rounds(weights=weights, threshold=0.5)
    assert some[0] > some[1] + 3 and some[1] > some[2] > 0


def test_a_draft_that_is_the_target_is_accepted_to_the_end_of_a_path(tmp_path: Path) -> None:
    for temperature in (0.0, 1.0):
        done = served("dynamic_mcsd", inner=WHOLE, weights=net_file(tmp_path), temperature=temperature, tokens=16)
        assert all(r.stats.rounds_none == 0 for r in done)


def test_roots_of_the_target_are_labelled_lossy_and_run() -> None:
    assert recipes.build("dynamic_mcsd", TARGET, inner=HALF, weights="none").lossless
    for name in (HALF, WHOLE):
        assert not recipes.build("dynamic_mcsd", TARGET, inner=name, weights="none", roots="target").lossless
        for temperature in (0.0, 1.0):
            done = served("dynamic_mcsd", inner=name, weights="none", roots="target", temperature=temperature)
            assert all(len(r.output) == 24 for r in done)


def test_roots_of_the_target_take_a_net_too(tmp_path: Path) -> None:
    done = served("dynamic_mcsd", inner=HALF, weights=net_file(tmp_path), roots="target", temperature=1.0)
    assert sum(r.stats.draft_tokens for r in done) > 0


def test_without_weights_the_tree_is_a_fixed_one() -> None:
    recipe: Any = recipes.build("dynamic_mcsd", TARGET, inner=HALF, weights="none", width=3, depth=4)
    assert recipe.policy.widths == (3, 1, 1, 1) and recipe.controller == Fixed(4, 12)


def test_weights_of_another_draft_are_refused(tmp_path: Path) -> None:
    record = {"options": {"inner": "fast_draft"}}
    with pytest.raises(CompositionError, match=r"(?s)'fast_draft', 32 wide.*hint: inner=fast_draft, weights=none"):
        recipes.build("dynamic_mcsd", TARGET, inner=HALF, weights=net_file(tmp_path, record=record))
    record = {"options": {"inner": HALF}}
    recipes.build("dynamic_mcsd", TARGET, inner=HALF, weights=net_file(tmp_path, record=record))
    narrow = random_head("decision", tiny_runner(config=replace(CONFIG, hidden_size=16)))
    head = replace(narrow, config=replace(narrow.config, target_hidden=CONFIG.hidden_size))
    path = str(write_head(tmp_path / "narrow.safetensors", head))
    with pytest.raises(CompositionError, match=r"16 wide; those of .* are 32 wide"):
        recipes.build("dynamic_mcsd", TARGET, inner=HALF, weights=path)


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    for name, wrong in (("roots", "both"), ("verifier", "match"), ("width", 0), ("depth", 0)):
        with pytest.raises(OptionError, match=f"{name} cannot be"):
            recipes.build("dynamic_mcsd", TARGET, inner=HALF, weights="none", **{name: wrong})
    with pytest.raises(OptionError, match="'traversal' would have no effect"):
        recipes.build("dynamic_mcsd", TARGET, inner=HALF, weights="none", roots="target", verifier="traversal")
    with pytest.raises(CompositionError, match=r"NGram shows none|NGram supplies"):
        recipes.build("dynamic_mcsd", TARGET, inner="prompt_lookup", weights=net_file(tmp_path))


def test_training_remembers_which_draft_it_was_for() -> None:
    plan = recipes.load("dynamic_mcsd").training(tiny_runner(dtype=torch.float32), torch.arange(4), inner=HALF)
    assert plan.notes["options"] == {"inner": HALF} and plan.notes["ids"] is None and plan.config.kind == "decision"
