"""DFlash: a block of guesses from one draft pass, and a tree of its likeliest paths."""

import threading
from pathlib import Path
from typing import Any

import pytest

from block_nets import AHEAD, trained
from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.sized import Sized
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.nets.files.store import read
from draftwood.drafters.on_features.blocks import Blocks
from draftwood.errors import CompositionError, OptionError
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
from tiny_run import write_data

TARGET = tiny_runner()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_head(tmp_path_factory.mktemp("weights") / "dflash.safetensors", trained("float64")))


def served(name: str, temperature: float) -> list[Request]:
    each = [SamplingParams(seed=i, temperature=temperature, max_tokens=9 + i % 5) for i in range(len(PROMPTS))]
    return serve(make_engine(TARGET, recipes.build(name, TARGET)), PROMPTS, each)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", ["", ":size=paper", ":depth=3:nodes=12", ":depth=2:nodes=6:beam=1"])
def test_the_text_is_that_of_plain_decoding(weights: str, options: str, temperature: float) -> None:
    done = served(f"dflash:weights={weights}{options}", temperature)
    assert [r.output for r in done] == [r.output for r in served("autoregressive", temperature)]
    assert {r.stats.disabled for r in done} == {None}
    rounds = [sum(getattr(r.stats, f"rounds_{kind}") for r in done) for kind in ("all", "some", "none")]
    print(options, temperature, rounds)
    assert not options or all(rounds)


def test_the_published_form_is_one_block_and_more_nodes_make_a_tree(weights: str) -> None:
    paper: Any = recipes.build("dflash:size=paper", TARGET, weights=weights)
    assert (
        isinstance(paper.drafter, Blocks) and paper.controller == Fixed(AHEAD, AHEAD) and paper.policy == BestFirst(1)
    )
    tree: Any = recipes.build("dflash:depth=3:nodes=12", TARGET, weights=weights)
    assert tree.controller == Fixed(3, 12) and tree.policy == BestFirst(None)
    free: Any = recipes.build("dflash", TARGET, weights=weights)
    assert isinstance(free.controller, Sized) and {depth for depth, _ in free.controller.sizes} <= set(range(AHEAD + 1))
    assert "expected speed" in free.notes[0] or "plain decoding" in free.notes[0]


def test_weights_that_do_not_fit_are_refused(weights: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"(?s)no weights of kind 'block' ship.*draftwood train dflash"):
        recipes.build("dflash", TARGET)
    other = write_head(tmp_path / "other.safetensors", random_head("eagle3", TARGET))
    with pytest.raises(CompositionError, match="holds weights of kind 'eagle3'"):
        recipes.build("dflash", TARGET, weights=str(other))
    with pytest.raises(OptionError, match=f"depth={AHEAD}"):
        recipes.build(f"dflash:depth={AHEAD + 1}", TARGET, weights=weights)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("models") / "tiny")))


def test_a_run_that_was_interrupted_writes_the_same_bytes(small: Loaded, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    options = {"dflash": {"stages": 3, "layers": 2, "share": 0.5}}

    def session(name: str) -> Session:
        chosen: Any = {"steps": 6, "draft_vocab_size": 64, "batch_tokens": 256, "prompts": 2, "options": options}
        return Session(small, TrainSettings(recipes=("dflash",), data=(data,), out=tmp_path / name, **chosen))

    assert session("whole").run()
    until = threading.Event()
    assert not session("parts").run(lambda report: until.set() if report.step == 2 else None, until=until)
    assert session("parts").run()
    whole, parts = (head_file(tmp_path / name, "dflash") for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    head = read(whole)
    assert head.config.stages == 3 and head.config.layer.num_layers == 2 and head.record["step"] == 6
    recipes.build("dflash", runner_of(small), weights=str(whole))
