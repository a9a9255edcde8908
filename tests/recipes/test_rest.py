"""The recipe opens a store of this tokenizer and no other, and drafts from it."""

from pathlib import Path

import numpy as np
import pytest

from draftwood import recipes
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.datastore import Datastore
from draftwood.drafters.retrieval.stores.build import Piece, build_store
from draftwood.errors import OptionError, StoreError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("model"))))


def store_of(path: Path, loaded: Loaded, *texts: list[int]) -> Path:
    tokenizer = loaded.tokenizer
    pieces = [Piece(np.array(text)) for text in texts]
    build_store(path, pieces, vocab_size=tokenizer.vocab_size, tokenizer=tokenizer.fingerprint, model=loaded.name)
    return path


def test_options_reach_the_parts(loaded: Loaded, tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", loaded, [1, 2])
    made = recipes.build(f"rest:store={store}:depth=3:nodes=7:max_span=5:min_span=1:occurrences=9", runner_of(loaded))
    assert isinstance(made.drafter, Datastore) and made.lossless
    assert (made.drafter.min_span, made.drafter.max_span, made.drafter.occurrences) == (1, 5, 9)
    assert recipes.lender(f"rest:store={store}:depth=3") == f"rest:store={store}"


def test_without_a_store_the_error_says_how_to_build_one(loaded: Loaded) -> None:
    with pytest.raises(
        OptionError, match=r"a datastore is needed.*\nhint: `draftwood datastore build.*--option store="
    ):
        recipes.build("rest", runner_of(loaded))


def test_a_store_of_another_tokenizer_of_the_same_size_is_refused(loaded: Loaded, tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", loaded, [1, 2])
    folder = write_folder(tmp_path / "other")
    text = (folder / "tokenizer.json").read_text()
    swapped = text.replace('"a"', '"?!"').replace('"b"', '"a"').replace('"?!"', '"b"')
    assert swapped != text
    (folder / "tokenizer.json").write_text(swapped)
    other = load(str(folder))
    assert other.tokenizer.vocab_size == loaded.tokenizer.vocab_size
    with pytest.raises(StoreError, match=f"another tokenizer: {loaded.tokenizer.fingerprint} of .*\nhint: build one"):
        recipes.build(f"rest:store={store}", runner_of(other))
    recipes.build(f"rest:store={store}", runner_of(load(str(write_folder(tmp_path / "same", seed=1)))))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_those_of_plain_decoding(loaded: Loaded, tmp_path: Path, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=40, ignore_eos=True)
    prompts = ["abc", "some text", "x"]
    plain = [answer.token_ids for answer in LLM(loaded, "autoregressive").generate(prompts, params)]
    known = [
        loaded.tokenizer.encode(prompt, special=True) + list(ids) for prompt, ids in zip(prompts, plain, strict=True)
    ]
    store = store_of(tmp_path / "s", loaded, *known)
    answers = LLM(loaded, f"rest:store={store}:nodes=64").generate(prompts, params)
    assert [answer.token_ids for answer in answers] == plain
    assert all(answer.tokens_per_pass > 2 and answer.stats.disabled is None for answer in answers)
