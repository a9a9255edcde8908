"""Superposed drafts change how fast a text is written, not the text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import recipes
from draftwood.controllers.sized import Sized
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.drafters.retrieval.stores.build import Piece, build_store
from draftwood.drafters.superposed.drafter import Superposed
from draftwood.drafters.superposed.ngrams import StoreCounts
from draftwood.drafters.superposed.superposition import Superposition
from draftwood.errors import CompositionError, OptionError
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from planted_rules import Everything

TARGET = tiny_runner(2)
V = TARGET.info.vocab_size
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]
INNER = "speculative_sampling:draft=first:3"
SHALLOW = "speculative_sampling:draft=first:1"


def alternating(tokens: Any) -> torch.Tensor:
    """Even and odd tokens take turns."""
    return torch.arange(V) % 2 == len(tokens) % 2


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "grammar": {"grammar": alternating},
    "cut": {"top_p": 0.8, "temperature": 0.7},
}


def served(recipe: Recipe, way: str, count: int = 8) -> list[Request]:
    options = {"temperature": 1.0, "max_tokens": 24, **WAYS[way]}
    return serve(
        make_engine(TARGET, recipe), PROMPTS[:count], [SamplingParams(seed=i, **options) for i in range(count)]
    )


def superposed(**options: Any) -> Recipe:
    return recipes.build("superposed_decoding", TARGET, inner=INNER, **{"depth": 3, "nodes": 8, **options})


@pytest.mark.parametrize("options", [{}, {"k": 6, "nodes": 12, "temperature": 1.0, "alpha": 0.0}], ids=["k=3", "k=6"])
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_that_of_plain_decoding_whatever_is_accepted(way: str, options: dict[str, Any]) -> None:
    done = served(superposed(**options), way)
    assert [r.output for r in done] == [r.output for r in served(recipes.build("autoregressive", TARGET), way)]
    assert {r.stats.disabled for r in done} == {None}
    rounds = [sum(getattr(r.stats, f"rounds_{what}") for r in done) for what in ("all", "some", "none")]
    assert min(rounds) > 0, rounds


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_a_rule_that_accepts_drafts_unseen_writes_another_text(way: str) -> None:
    (plain,) = served(recipes.build("autoregressive", TARGET), way, 1)
    (wrong,) = served(replace(superposed(), verifier=Everything(draws=frozenset(Draw))), way, 1)
    assert len(wrong.output) == len(plain.output) and wrong.output != plain.output and wrong.error is None


def test_more_drafts_are_accepted_than_of_one_alone() -> None:
    def passes(k: int) -> int:
        return sum(r.stats.target_passes for r in served(superposed(k=k, nodes=3 * k), "greedy"))

    assert passes(4) < passes(1)


def test_the_size_is_chosen_for_the_machine_and_said_where_it_is_not_fixed() -> None:
    recipe: Any = superposed(depth=None, nodes=None)
    assert isinstance(recipe.controller, Sized) and "chosen for" in recipe.notes[0]
    assert all(1 < depth < nodes <= 3 * depth for depth, nodes in recipe.controller.sizes)
    done = served(recipe, "sampled")
    assert [r.output for r in done] == [r.output for r in served(recipes.build("autoregressive", TARGET), "sampled")]
    assert recipes.build("superposed_decoding", TARGET, inner=INNER, depth=0).controller.depth == 0  # type: ignore[attr-defined]


def test_a_store_gives_the_n_grams_and_must_have_the_targets_tokens(tmp_path: Path) -> None:
    target = runner_of(load(str(write_folder(tmp_path / "model")), dtype="float32"))
    tokenizer, path = target.info.tokenizer, tmp_path / "texts.store"
    assert tokenizer is not None
    build_store(path, [Piece(np.arange(9))], vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.fingerprint)
    recipe: Any = recipes.build(f"superposed_decoding:depth=2:nodes=4:store={path}:inner={SHALLOW}", target)
    assert isinstance(recipe.drafter.counts, StoreCounts)
    with pytest.raises(OptionError, match="no tokenizer to compare"):
        superposed(store=path)


def test_a_draft_model_is_needed_and_a_trained_one_serves(tmp_path: Path) -> None:
    head = write_head(tmp_path / "head.safetensors", random_head("language", TARGET))
    recipe: Any = recipes.build(f"superposed_decoding:depth=2:nodes=4:inner=fast_draft:weights={head}", TARGET)
    assert isinstance(recipe.drafter, Superposed) and isinstance(recipe.drafter.model, DraftModel)
    with pytest.raises(CompositionError, match="NGram is none\nhint: inner=fast_draft"):
        recipes.build("superposed_decoding", TARGET, inner="prompt_lookup")


def test_names_carry_options() -> None:
    name = f"superposed_decoding:k=4:depth=5:nodes=9:candidates=20:temperature=0.2:alpha=0.3:inner={INNER}"
    recipe: Any = recipes.build(name, TARGET)
    assert recipe.drafter.superposition == Superposition(4, 20, 0.2, 0.3)
    assert (recipe.controller.depth, recipe.controller.nodes) == (5, 9)
    for wrong in ({"k": 0}, {"candidates": 1}, {"alpha": 1.0}, {"temperature": 0.0}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            superposed(**wrong)
