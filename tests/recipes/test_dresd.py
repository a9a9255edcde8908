"""The recipe opens a store of this model and backend and no other, and drafts from it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood import recipes
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.dense import Dense
from draftwood.drafters.retrieval.stores.build import Piece
from draftwood.drafters.retrieval.stores.dense.build import build_dense
from draftwood.errors import OptionError, StoreError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.train.data.hidden_states import final_states


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("model"))))


def store_of(path: Path, loaded: Loaded, *texts: list[int]) -> Path:
    pieces = [Piece(np.array(text)) for text in texts]
    build_dense(path, pieces, final_states(runner_of(loaded)), loaded.info)
    return path


def test_options_reach_the_parts(loaded: Loaded, tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", loaded, [1, 2, 3])
    made: Any = recipes.build(f"dresd:store={store}:depth=3:nodes=7:neighbours=20:drafts=4", runner_of(loaded))
    assert isinstance(made.drafter, Dense) and made.lossless
    assert (made.drafter.neighbours, made.drafter.drafts) == (20, 4)
    assert (made.controller.depth, made.controller.nodes) == (3, 7)
    assert recipes.lender(f"dresd:store={store}:depth=3") == f"dresd:store={store}"
    assert isinstance(recipes.build(f"dresd:store={store}", runner_of(loaded)).drafter, Route), "sizes by cost"


def test_without_a_store_the_error_says_how_to_build_one(loaded: Loaded) -> None:
    with pytest.raises(OptionError, match=r"a dense datastore is needed.*\nhint: `draftwood datastore build.*--dense"):
        recipes.build("dresd", runner_of(loaded))


def test_a_store_of_another_model_or_backend_is_refused(loaded: Loaded, tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", loaded, [1, 2, 3])
    other = load(str(write_folder(tmp_path / "other", seed=1)))
    with pytest.raises(StoreError, match=f"of another model: {loaded.fingerprint} on"):
        recipes.build(f"dresd:store={store}", runner_of(other))
    float64 = load(loaded.name, dtype="float64")
    with pytest.raises(
        StoreError, match=r"of another backend: .* the target is .* on float64 float64\nhint: build one"
    ):
        recipes.build(f"dresd:store={store}", runner_of(float64))
    recipes.build(f"dresd:store={store}", runner_of(load(str(write_folder(tmp_path / "same")))))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_those_of_plain_decoding(loaded: Loaded, tmp_path: Path, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=40, ignore_eos=True)
    prompts = ["abc", "some text", "x"]
    plain = [answer.token_ids for answer in LLM(loaded, "autoregressive").generate(prompts, params)]
    known = [
        loaded.tokenizer.encode(prompt, special=True) + list(ids) for prompt, ids in zip(prompts, plain, strict=True)
    ]
    store = store_of(tmp_path / "s", loaded, *known)
    for sizes in (":nodes=64", ""):
        answers = LLM(loaded, f"dresd:store={store}{sizes}").generate(prompts, params)
        assert [answer.token_ids for answer in answers] == plain
        assert all(answer.stats.disabled is None for answer in answers)
        if sizes:
            assert all(answer.tokens_per_pass > 2 for answer in answers)
