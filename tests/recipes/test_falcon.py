"""Falcon: several levels of guesses from one draft pass."""

import threading
from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.route import Route
from draftwood.drafters.nets.files.store import read
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.on_features.semi_autoregressive import SemiAutoregressive
from draftwood.errors import CompositionError, DraftwoodError, OptionError
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.measure import head_file
from draftwood.train.loop.session import Session, TrainSettings
from draftwood.trees.best_first import BestFirst
from own_layers import PROMPTS
from semi_nets import BLOCK, trained
from tiny_run import write_data

TARGET = tiny_runner()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_head(tmp_path_factory.mktemp("weights") / "falcon.safetensors", trained("float64")))


def served(name: str, temperature: float) -> list[Request]:
    each = [SamplingParams(seed=i, temperature=temperature, max_tokens=9 + i % 5) for i in range(len(PROMPTS))]
    return serve(make_engine(TARGET, recipes.build(name, TARGET)), PROMPTS, each)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", ["", ":depth=2", ":size=paper:nodes=12", ":size=paper:depth=3:nodes=6:beam=3"])
def test_the_text_is_that_of_plain_decoding(weights: str, options: str, temperature: float) -> None:
    done = served(f"falcon:weights={weights}{options}", temperature)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", temperature)]
    assert {r.stats.disabled for r in done} == {None}
    rounds = [sum(getattr(r.stats, f"rounds_{kind}") for r in done) for kind in ("all", "some", "none")]
    print(options, temperature, rounds)
    assert "paper" not in options or all(rounds)


def test_by_default_what_pays_is_drafted_and_the_banner_says_so(weights: str) -> None:
    recipe: Any = recipes.build("falcon", TARGET, weights=weights)
    routed = isinstance(recipe.drafter, Route) and isinstance(recipe.controller, Priced)
    assert routed != (isinstance(recipe.drafter, Nothing) and recipe.controller == Fixed(0))
    assert "guesses 2 levels: " in recipe.notes[0] and "expected speed" in recipe.notes[0]
    paper: Any = recipes.build("falcon:size=paper", TARGET, weights=weights)
    assert isinstance(paper.drafter, SemiAutoregressive) and paper.policy == BestFirst(20)
    assert paper.controller == Fixed(4 * BLOCK, 60) and "whether it pays or not" in paper.notes[0]


def test_weights_that_do_not_fit_are_refused(weights: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"(?s)no weights of kind 'semi' ship.*draftwood train falcon"):
        recipes.build("falcon", TARGET)
    other = write_head(tmp_path / "other.safetensors", random_head("eagle3", TARGET))
    with pytest.raises(CompositionError, match="holds weights of kind 'eagle3'"):
        recipes.build("falcon", TARGET, weights=str(other))
    for wrong in ({"nodes": 5}, {"beam": 3}, {"depth": -1}):
        with pytest.raises(DraftwoodError, match=next(iter(wrong))):
            recipes.build("falcon", TARGET, weights=weights, **wrong)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("models") / "tiny")))


def test_a_run_that_was_interrupted_writes_the_same_bytes(small: Loaded, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    options = {"falcon": {"block": 3}}

    def session(name: str) -> Session:
        chosen: Any = {"steps": 6, "draft_vocab_size": 64, "batch_tokens": 256, "prompts": 2, "options": options}
        return Session(small, TrainSettings(recipes=("falcon",), data=(data,), out=tmp_path / name, **chosen))

    assert session("whole").run()
    until = threading.Event()
    assert not session("parts").run(lambda report: until.set() if report.step == 2 else None, until=until)
    assert session("parts").run()
    whole, parts = (head_file(tmp_path / name, "falcon") for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    head = read(whole)
    assert head.config.stages == 3 and head.record["step"] == 6
    recipes.build("falcon", runner_of(small), weights=str(whole))
