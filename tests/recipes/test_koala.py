"""KOALA: deeper heads of two flavours, on every backend, whatever they have learned."""

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
from draftwood.drafters.nets.make_drafter import feature_drafter, heads_drafter
from draftwood.drafters.on_features.features import Features
from draftwood.drafters.on_features.heads import Heads
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
FLAVOURS = ("eagle", "medusa")


@cache
def head(flavour: str, kind: str) -> Head:
    if kind == "trained":
        more: dict[str, Any] = {"flavour": "medusa", "stages": DEPTH} if flavour == "medusa" else {}
        return trained("koala", layers=2, adversarial=0.05, **more)
    return random_head(f"deep_{flavour}", target("float32"))


def drafter(flavour: str, kind: str, model: Any) -> Any:
    return (feature_drafter if flavour == "eagle" else heads_drafter)(head(flavour, kind), model)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["trained", pytest.param("random", marks=pytest.mark.slow)])
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", TARGETS)
def test_the_text_is_that_of_plain_decoding(name: str, flavour: str, kind: str, temperature: float) -> None:
    """20 prompts in batches of 8."""
    model = target(name)
    plain, _ = served(model, None, temperature)
    tree, limit = BestFirst(6), Fixed(depth=DEPTH, nodes=20)
    drafted, seen = served(model, drafter(flavour, kind, model), temperature, tree, controller=limit)
    assert [r.output for r in drafted] == [r.output for r in plain]
    assert {r.stats.disabled for r in drafted} == {None}
    print(name, flavour, kind, temperature, dict(seen.rounds))
    shares = ("all", "some", "none") if kind == "trained" else ("some", "none")
    assert all(seen.rounds[share] > 0 for share in shares)


@pytest.mark.parametrize("name", TARGETS)
def test_an_oracle_of_two_layers_is_right_every_time(name: str) -> None:
    model = target_of_one_token(name)
    plain, _ = served(model, None, 0.0)
    drafted, seen = served(model, feature_drafter(oracle(head("eagle", "random")), model), 0.0)
    assert [r.output for r in drafted] == [r.output for r in plain]
    assert seen.rounds["all"] > 0 and not seen.rounds["some"] and not seen.rounds["none"], seen.rounds


def test_drawn_drafts_are_for_rejection_and_given_ones_for_match() -> None:
    model = target("float64")
    for flavour in FLAVOURS:
        parts: dict[str, Any] = {"drafter": drafter(flavour, "random", model), "controller": Fixed(depth=2)}
        Recipe(**parts, policy=Chain(), verifier=Rejection()).check(model)
        with pytest.raises(CompositionError, match=r"Rejection.*BestFirst"):
            Recipe(**parts, policy=BestFirst(4), verifier=Rejection()).check(model)
        drafted, seen = served(model, parts["drafter"], 1.0, Chain(Draw.IID), Rejection(), Fixed(depth=2))
        assert {r.stats.disabled for r in drafted} == {None} and sum(seen.rounds.values()) > 0


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("weights")
    made = {flavour: random_head(f"deep_{flavour}", tiny_runner()) for flavour in FLAVOURS}
    return {flavour: str(write_head(place / f"{flavour}.safetensors", each)) for flavour, each in made.items()}


def test_the_flavour_says_what_drafts(weights: dict[str, str]) -> None:
    for flavour, part, size in (("eagle", Features, (6, 60)), ("medusa", Heads, (3, 63))):
        options: dict[str, Any] = {"weights": weights[flavour], "flavour": flavour}
        recipe: Any = recipes.build("koala:size=paper", tiny_runner(), **options)
        assert isinstance(recipe.drafter, part) and isinstance(recipe.verifier, Match)
        assert recipe.policy == BestFirst(10) and recipe.controller == Fixed(*size)
        assert isinstance(recipes.build("koala", tiny_runner(), **options).controller, Sized)
    with pytest.raises(OptionError, match="the weights draft 3 levels at most"):
        recipes.build("koala", tiny_runner(), weights=weights["medusa"], flavour="medusa", depth=4)


def test_weights_that_do_not_fit_are_refused(weights: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"(?s)no weights of kind 'deep_eagle' ship.*draftwood train koala"):
        recipes.build("koala", tiny_runner())
    with pytest.raises(CompositionError, match="holds weights of kind 'deep_medusa', 'deep_eagle' was asked for"):
        recipes.build("koala", tiny_runner(), weights=weights["medusa"])
    other = write_head(tmp_path / "other.safetensors", random_head("eagle", tiny_runner()))
    with pytest.raises(CompositionError, match="holds weights of kind 'eagle'"):
        recipes.build("koala", tiny_runner(), weights=str(other))
