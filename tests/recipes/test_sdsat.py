"""The recipe is built from weights of its target, with a layout and a size that its weights have."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.drafters.on_features.probes import TrainedProbes
from draftwood.errors import CompositionError, OptionError
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.sizing import choose_probes
from draftwood.sizing.choose_probes import Yielded
from draftwood.sizing.remembered import Timed
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return runner_of(load(str(write_folder(tmp_path_factory.mktemp("models") / "tiny")), dtype="float32"))


@pytest.fixture(scope="module")
def weights(target: Runner, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_head(tmp_path_factory.mktemp("heads") / "h.safetensors", random_head("probes", target)))


def paper(target: Runner, weights: str, **more: Any) -> Any:
    return recipes.build("sdsat", target, weights=weights, size="paper", **more)


def test_the_published_form_alternates_and_probes_may_stand_behind_every_token(target: Runner, weights: str) -> None:
    made = paper(target, weights)
    assert isinstance(made.drafter, TrainedProbes) and not made.drafter.everywhere and made.drafter.depth == 3
    assert made.policy == Chain(Draw.GIVEN) and made.controller == Fixed(3, 3)
    every = paper(target, weights, layout="every", depth=2)
    assert every.drafter.everywhere and every.controller == Fixed(4, 2 + 3 * 2)
    tree = paper(target, weights, depth=2, nodes=6)
    assert tree.policy == BestFirst() and tree.controller == Fixed(2, 6)
    assert paper(target, weights, depth=2, nodes=2).policy == Chain(Draw.GIVEN)
    for each in (made, every, tree):
        each.check(target)


def test_by_default_nothing_is_drafted_where_that_does_not_pay(
    target: Runner, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_probes, "yielded", lambda *given: Timed(Yielded((0.0,) * 3, (0.0,) * 3, None)))
    costs = choose_probes.timed_pass_costs(target)
    monkeypatch.setattr(choose_probes, "timed_pass_costs", lambda target: Timed(costs.found))
    made = recipes.build("sdsat", target, weights=weights)
    assert made.controller == Fixed(0) and made.notes[0].startswith("this is plain decoding")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"depth": 4}, "depth cannot be 4: the weights draft 3 levels at most"),
        ({"depth": 0}, "depth"),
        ({"depth": 3, "nodes": 2}, "nodes"),
        ({"layout": "sometimes"}, "layout cannot be 'sometimes'"),
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused(
    target: Runner, weights: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionError, match=f"(?s){said}.*hint:"):
        paper(target, weights, **options)


@pytest.mark.parametrize("options", [{"layout": "every"}, {"nodes": 5}])
def test_what_only_the_published_form_has_is_not_dropped(target: Runner, weights: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="only with size=paper"):
        recipes.build("sdsat", target, weights=weights, **options)


def test_weights_of_another_model_or_recipe_are_refused(target: Runner, tmp_path: Path) -> None:
    other = replace(random_head("probes", target), target="beef", record={"target": "llama-7b"})
    path = str(write_head(tmp_path / "other.safetensors", other))
    with pytest.raises(CompositionError, match=r"was trained for llama-7b \(beef\)"):
        paper(target, path)
    wide = replace(other, config=replace(other.config, target_hidden=64), target="")
    with pytest.raises(CompositionError, match="reads features 64 wide"):
        paper(target, str(write_head(tmp_path / "wide.safetensors", wide)))
    heads = str(write_head(tmp_path / "heads.safetensors", random_head("medusa", target)))
    with pytest.raises(CompositionError, match="holds weights of kind 'medusa', 'probes' was asked for"):
        paper(target, heads)


def test_where_no_weights_ship_the_error_ends_with_the_command_that_trains_them(target: Runner) -> None:
    with pytest.raises(
        OptionError, match=r"hint: draftwood train sdsat --target .* --out FOLDER, then --option weights="
    ):
        recipes.build("sdsat", target)
