"""A target that drafts and reviews with its own first layers: options, notes, and the same text."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.route import Route
from draftwood.drafters.layers.hierarchical import Hierarchical
from draftwood.drafters.nothing import Nothing
from draftwood.errors import CompositionError, OptionError
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.verifiers.rejection import Rejection

TARGET = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_head(tmp_path_factory.mktemp("heads") / "hispec.safetensors", random_head("exits", TARGET)))


def served(name: str, temperature: float, **options: Any) -> list[Request]:
    each = [SamplingParams(seed=i, temperature=temperature, max_tokens=12) for i in range(8)]
    return serve(make_engine(TARGET, recipes.build(name, TARGET, **options)), PROMPTS, each)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "options", ["", ":tentative=2", ":size=paper", ":size=paper:draft=1:tentative=6", ":exits=shared:size=paper"]
)
def test_the_text_is_that_of_plain_decoding(options: str, temperature: float, weights: str) -> None:
    own = {} if "shared" in options else {"weights": weights}
    done = served(f"hispec{options}", temperature, **own)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", temperature)]
    assert {r.stats.disabled for r in done} == {None}
    assert sum(r.stats.draft_tokens for r in done) > 0 or "paper" not in options


def test_by_default_what_pays_is_drafted_and_the_banner_says_so(weights: str) -> None:
    recipe: Any = recipes.build("hispec", TARGET, weights=weights)
    routed = isinstance(recipe.drafter, Route) and isinstance(recipe.controller, Priced)
    assert routed != (isinstance(recipe.drafter, Nothing) and recipe.controller == Fixed(0))
    assert "leave after 1 of 4 layers and are reviewed after 2: " in recipe.notes[0]
    assert "expected speed" in recipe.notes[0]
    paper: Any = recipes.build("hispec:size=paper:verifier=rejection:draft=3", TARGET, weights=weights)
    assert isinstance(paper.drafter, Hierarchical) and paper.drafter.per_review == 3
    assert paper.controller == Fixed(4, 4) and isinstance(paper.verifier, Rejection)
    assert "whether it pays or not" in paper.notes[0]


def test_where_nothing_is_read_room_is_kept_for_what_a_review_rejects(weights: str) -> None:
    with as_if_on_a_device():
        recipe: Any = recipes.build("hispec:size=paper", TARGET, weights=weights)
    assert recipe.controller == Fixed(4, 6)


def test_places_come_from_the_weights_or_from_options(weights: str) -> None:
    shared: Any = recipes.build("hispec:exits=shared:size=paper", TARGET)
    assert (shared.drafter.draft, shared.drafter.review, shared.drafter.nets) == (1, 2, None)
    other: Any = recipes.build("hispec:exits=shared:size=paper:draft_layers=2:review_layers=3", TARGET)
    assert (other.drafter.draft, other.drafter.review) == (2, 3)
    recipes.build("hispec:draft_layers=1:review_layers=2:size=paper", TARGET, weights=weights)
    for wrong, message in (
        ("draft_layers=2", "draft_layers cannot be 2: these weights were trained for 1"),
        ("review_layers=3", "review_layers cannot be 3: these weights were trained for 2"),
        ("exits=shared", "weights .* is used only with exits=nets"),
        ("verifier=rejection", "verifier 'rejection' is used only with size=paper"),
        ("draft=0", "draft cannot be '0'"),
    ):
        with pytest.raises(OptionError, match=message):
            recipes.build(f"hispec:{wrong}", TARGET, weights=weights)
    for wrong in ("draft_layers=3:review_layers=3", "review_layers=4", "draft_layers=3", "review_layers=1"):
        with pytest.raises(OptionError, match="1 <= draft_layers < review_layers <= 3"):
            recipes.build(f"hispec:exits=shared:{wrong}", TARGET)


def test_where_no_weights_ship_the_error_says_how_to_train_some() -> None:
    with pytest.raises(OptionError, match="draftwood train hispec --target TARGET"):
        recipes.build("hispec", TARGET)


def test_weights_of_another_model_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    one, two = (runner_of(load(str(write_folder(tmp_path / str(i), i, num_layers=4)))) for i in range(2))
    file = str(write_head(tmp_path / "one.safetensors", random_head("exits", one)))
    recipes.build("hispec:size=paper", one, weights=file)
    with pytest.raises(CompositionError, match=r"was trained for .* not for"):
        recipes.build("hispec", two, weights=file)
    single = str(write_head(tmp_path / "single.safetensors", random_head("exit", one)))
    with pytest.raises(CompositionError, match="holds weights of kind 'exit', 'exits' was asked for"):
        recipes.build("hispec", one, weights=single)
