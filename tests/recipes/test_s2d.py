"""A small model with nested exits: options, weights, one draft for two targets, training, and the same text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftwood import recipes
from draftwood.cli.main import app
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.route import Route
from draftwood.drafters.nets.files.store import read
from draftwood.drafters.nothing import Nothing
from draftwood.errors import CompositionError, DraftwoodError, OptionError, TrainError, WeightsError
from draftwood.runners.exits import Exits
from draftwood.runners.nested import NestedRunner
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.session import Session, TrainSettings
from draftwood.train.loop.trainer import Report
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection
from tiny_run import write_data

TARGET = tiny_runner(2)
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_head(tmp_path_factory.mktemp("s2d") / "s2d.safetensors", random_head("nested", TARGET))


def served(name: str, temperature: float) -> list[Request]:
    each = [SamplingParams(seed=i, temperature=temperature, max_tokens=12) for i in range(8)]
    return serve(make_engine(TARGET, recipes.build(name, TARGET)), PROMPTS, each)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "options", ["", "size=paper", "size=paper:shape=tree", "size=paper:depth=2:thresholds=0.9,0.2,0"]
)
def test_the_text_is_that_of_plain_decoding(weights: Path, options: str, temperature: float) -> None:
    done = served(f"s2d:weights={weights}:{options}".rstrip(":"), temperature)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", temperature)]
    assert {r.stats.disabled for r in done} == {None}
    assert sum(r.stats.draft_tokens for r in done) > 0 or not options


def test_by_default_what_pays_is_drafted_and_the_banner_says_so(weights: Path) -> None:
    recipe: Any = recipes.build(f"s2d:weights={weights}", TARGET)
    routed = isinstance(recipe.drafter, Route) and isinstance(recipe.controller, Priced)
    assert routed != (isinstance(recipe.drafter, Nothing) and recipe.controller == Fixed(0))
    assert "exits after 1, 2, 3 (thresholds 0.5, 0.5, 0): " in recipe.notes[0] and "expected speed" in recipe.notes[0]
    paper: Any = recipes.build(f"s2d:weights={weights}:size=paper:thresholds=0.7,1,0:verifier=rejection", TARGET)
    assert paper.drafter.model.exits == Exits((1, 2, 3), (0.7, 1.0, 0.0)) and isinstance(paper.verifier, Rejection)
    assert paper.policy == Chain(Draw.IID) and paper.controller == Fixed(4) and "pays or not" in paper.notes[0]
    tree: Any = recipes.build(f"s2d:weights={weights}:size=paper:shape=tree", TARGET)
    assert tree.policy == BestFirst(10) and tree.controller == Fixed(4, 60)


def test_what_does_not_fit_is_refused(weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "language.safetensors"
    write_head(other, random_head("language", TARGET))
    wide = tmp_path / "wide.safetensors"
    write_head(wide, random_head("nested", tiny_runner(config=replace(CONFIG, hidden_size=48))))
    for said, options in (
        ("there are 3 exits\nhint: one for each", {"thresholds": (0.5, 0.0)}),
        ("0 for the last exit", {"thresholds": (0.5, 0.5, 0.5)}),
        ("thresholds cannot be", {"thresholds": (0.5, 1.5, 0.0)}),
        ("thresholds cannot be", {"thresholds": "much"}),
        ("holds weights of kind 'language', 'nested' was asked for", {"weights": str(other)}),
        ("reads features 48 wide", {"weights": str(wide)}),
        ("no such file", {"weights": str(tmp_path / "nowhere.safetensors")}),
        ("no weights of kind 'nested' ship for this target\nhint: draftwood train s2d", {"weights": "auto"}),
        ("shape 'tree' is used only with size=paper", {"shape": "tree"}),
        ("wants given draws|given", {"size": "paper", "shape": "tree", "verifier": "rejection"}),
    ):
        with pytest.raises((OptionError, CompositionError, WeightsError), match=said):
            recipes.build("s2d", TARGET, **{"weights": str(weights), **options})
    with pytest.raises(CompositionError, match="holds weights of kind 'nested', 'language' was asked for"):
        recipes.build("fast_draft", TARGET, weights=str(weights))


def test_one_drafter_serves_two_targets_at_the_same_time(weights: Path) -> None:
    """Its weights are its own, its state belongs to an engine, and it is not changed by either."""
    drafter = recipes.build(f"s2d:weights={weights}:size=paper:thresholds=0.3,0.3,0", TARGET).drafter
    targets = [TARGET, tiny_runner(5)]
    recipe = Recipe(drafter=drafter, policy=Chain(Draw.GIVEN), verifier=Match(), controller=Fixed(3))
    params = [SamplingParams(seed=i, temperature=1.0, max_tokens=12) for i in range(8)]

    def requests() -> list[Request]:
        return [
            Request(i, list(p), own, CONFIG.vocab_size) for i, (p, own) in enumerate(zip(PROMPTS, params, strict=True))
        ]

    engines, texts = [make_engine(target, recipe, slots=4) for target in targets], [requests() for _ in targets]
    for engine, each in zip(engines, texts, strict=True):
        for request in each:
            engine.add(request)
    while any(engine.has_work for engine in engines):  # turn by turn
        for engine in engines:
            if engine.has_work:
                engine.step()
    found = [[r.output for r in each] for each in texts]
    for target, each, own in zip(targets, texts, found, strict=True):
        plain = serve(make_engine(target, recipes.build("autoregressive", target)), PROMPTS, params)
        alone = serve(make_engine(target, recipe, slots=4), PROMPTS, params)
        assert own == [r.output for r in plain] == [r.output for r in alone]
        assert [r.stats.accepted for r in each] == [r.stats.accepted for r in alone]
        assert {r.stats.disabled for r in each} == {None} and sum(r.stats.draft_tokens for r in each) > 0
    assert found[0] != found[1], "the targets differ"
    model: Any = drafter
    assert isinstance(model.model, NestedRunner) and not model.model._parts, "nothing of a run is in it"


# --- training

SMALL: dict[str, Any] = {"width": 32, "heads": 2, "inner": 64}


def settings(place: Path, name: str = "s2d", out: str = "out", **more: Any) -> TrainSettings:
    data = place / "data"
    if not data.exists():
        write_data(data)
    options = {name: {**SMALL, **more.pop("options", {})}}
    chosen = {"steps": 10, "draft_vocab_size": 64, "batch_tokens": 256, "prompts": 1, "options": options, **more}
    return TrainSettings(recipes=(name,), data=(data,), out=place / out, **chosen)


def test_killed_training_resumes_to_the_same_bytes_and_the_file_drafts(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")

    def run(out: str, kill: int | None = None) -> bytes:
        def watch(report: Report) -> None:
            if report.step == kill:
                raise RuntimeError("killed")

        Session(str(tmp_path / "model"), settings(tmp_path, out=out, save_every=1e-9)).run(watch)
        return (tmp_path / out / "s2d.safetensors").read_bytes()

    whole = run("whole")
    for kill in (1, 6):  # in pre-training, and behind it
        with pytest.raises(RuntimeError):
            run("broken", kill)
    assert run("broken") == whole
    head = read(tmp_path / "whole" / "s2d.safetensors")
    assert head.config.kind == "nested" and head.config.exits == (1, 2, 3) and head.record["step"] == 10
    assert head.record["options"] == {"size": "paper", **SMALL} and head.record["tokens_per_pass"] >= 1


def test_it_begins_with_the_weights_of_a_plain_small_model(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    model, three = str(tmp_path / "model"), {"layers": 3}
    assert Session(model, settings(tmp_path, "fast_draft", "plain", steps=2, options=three)).run()
    file = tmp_path / "plain" / "fast_draft.safetensors"
    session = Session(model, settings(tmp_path, start=str(file), options={"pretrain": 0.0}))
    net: Any = session.plans["s2d"].net
    theirs = read(file).tensors
    assert all(torch.equal(t, theirs[name]) for name, t in net.state_dict().items()) and session.starts["s2d"]
    assert session.run()
    record = read(tmp_path / "out" / "s2d.safetensors").record
    assert record["started_from"]["name"] == "fast_draft.safetensors"
    with pytest.raises(DraftwoodError, match="num_layers was 3, now it is 2"):
        Session(model, settings(tmp_path, out="other", start=str(file), options={"layers": 2, "exits": (1, 2)}))
    nested = tmp_path / "out" / "s2d.safetensors"
    with pytest.raises(CompositionError, match="kind 'nested', 'language' is trained here"):
        Session(model, settings(tmp_path, "fast_draft", "back", start=str(nested), options=three))
    exits = {"exits": (1, 3), "pretrain": 0.0}
    assert Session(model, settings(tmp_path, out="fewer", start=str(nested), options=exits)).starts, "fewer exits fit"
    with pytest.raises(TrainError, match="another run"):
        Session(model, settings(tmp_path, start=str(nested), options={"pretrain": 0.0}, out="plain")).run()


def test_the_command_line_trains_it(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    write_data(tmp_path / "data")
    words = ["train", "s2d", "--target", str(tmp_path / "model"), "--data", str(tmp_path / "data"), "--steps", "2"]
    words += ["--out", str(tmp_path / "out"), "--draft-vocab-size", "64", "--batch-tokens", "256", "--prompts", "1"]
    for option in ("width=32", "heads=2", "inner=64", "exits=1,3"):
        words += ["--option", option]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert read(tmp_path / "out" / "s2d.safetensors").config.exits == (1, 3)
