"""GRIFFIN: a head of two outputs under EAGLE-2's tree, on every backend, whatever it has learned."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.sized import Sized
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.drafters.on_features.features import Features
from draftwood.errors import CompositionError, OptionError
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from own_layers import served
from trained_heads import TARGETS, oracle, target, target_of_one_token, trained

DEPTH = 2


@cache
def head(kind: str) -> Head:
    if kind == "trained":
        return trained("griffin", stages=2, near=20, soft=1.0, regress=0.2)
    return random_head("griffin", target("float32"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["trained", pytest.param("random", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TARGETS)
def test_the_text_is_that_of_plain_decoding(name: str, kind: str, temperature: float) -> None:
    """20 prompts in batches of 8."""
    model = target(name)
    plain, _ = served(model, None, temperature)
    tree, limit = BestFirst(6), Fixed(depth=DEPTH, nodes=20)
    drafted, seen = served(model, feature_drafter(head(kind), model), temperature, tree, controller=limit)
    assert [r.output for r in drafted] == [r.output for r in plain]
    assert {r.stats.disabled for r in drafted} == {None}
    print(name, kind, temperature, dict(seen.rounds))
    shares = ("all", "some", "none") if kind == "trained" else ("some", "none")
    assert all(seen.rounds[share] > 0 for share in shares)


@pytest.mark.parametrize("name", TARGETS)
def test_an_oracle_is_right_every_time(name: str) -> None:
    model = target_of_one_token(name)
    plain, _ = served(model, None, 0.0)
    right = oracle(head("random"))
    drafted, seen = served(model, feature_drafter(right, model), 0.0)
    assert [r.output for r in drafted] == [r.output for r in plain]
    assert seen.rounds["all"] > 0 and not seen.rounds["some"] and not seen.rounds["none"], seen.rounds
    wrong = Head(right.config, {**right.tensors, "fc.weight": right.tensors["fc.weight"].roll(32, 1)}, None, "", {})
    _, seen = served(model, feature_drafter(wrong, model), 0.0)
    assert seen.rounds["none"] > 0, "a twin: one that hands the feature on"


def test_drawn_drafts_are_for_rejection_and_given_ones_for_match() -> None:
    model = target("float64")
    drafter = feature_drafter(head("random"), model)
    parts: dict[str, Any] = {"drafter": drafter, "controller": Fixed(depth=2)}
    Recipe(**parts, policy=Chain(), verifier=Rejection()).check(model)
    with pytest.raises(CompositionError, match=r"Rejection.*BestFirst"):
        Recipe(**parts, policy=BestFirst(4), verifier=Rejection()).check(model)
    drafted, seen = served(model, drafter, 1.0, Chain(Draw.IID), Rejection())
    assert {r.stats.disabled for r in drafted} == {None} and sum(seen.rounds.values()) > 0


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("weights") / "griffin.safetensors"
    return str(write_head(place, random_head("griffin", tiny_runner())))


def test_the_tree_is_eagle2s(weights: str) -> None:
    recipe: Any = recipes.build("griffin:size=paper", tiny_runner(), weights=weights)
    assert isinstance(recipe.drafter, Features) and isinstance(recipe.verifier, Match)
    assert recipe.policy == BestFirst(10) and recipe.controller == Fixed(depth=6, nodes=60)
    chosen: Any = recipes.build("griffin", tiny_runner(), weights=weights)
    assert isinstance(chosen.controller, Sized) and chosen.notes


def test_weights_that_do_not_fit_are_refused(weights: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"(?s)no weights of kind 'griffin' ship.*draftwood train griffin"):
        recipes.build("griffin", tiny_runner())
    other = write_head(tmp_path / "other.safetensors", random_head("eagle", tiny_runner()))
    with pytest.raises(CompositionError, match="holds weights of kind 'eagle', 'griffin' was asked for"):
        recipes.build("griffin", tiny_runner(), weights=str(other))
    with pytest.raises(CompositionError, match="holds weights of kind 'griffin', 'eagle' was asked for"):
        recipes.build("eagle2", tiny_runner(), weights=weights)
