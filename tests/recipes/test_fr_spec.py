"""The drafter of another recipe, over the tokens that are frequent in the named texts."""

from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.testing.runs import make_engine, serve


def test_texts_choose_the_tokens_and_the_text_stays_that_of_plain_decoding(tmp_path: Path) -> None:
    loaded = load(str(write_folder(tmp_path / "model")), dtype="float64")
    target = runner_of(loaded)
    (tmp_path / "text.txt").write_text("abacad")
    options = {"texts": (str(tmp_path / "text.txt"),), "inner": "speculative_sampling:draft=first:1:depth=3"}
    recipe: Any = recipes.build("fr_spec", target, vocab_size=1, **options)
    assert recipe.drafter.keep.tolist() == [*loaded.tokenizer.encode("a"), 256, 257]
    params = [SamplingParams(max_tokens=20, temperature=t, seed=3) for t in (0.0, 0.0)]
    want, got = (
        [r.output for r in serve(make_engine(target, made), [[5, 6], [7]], params)]
        for made in (recipes.build("autoregressive", target), recipes.build("fr_spec", target, **options))
    )
    assert got == want


def test_without_texts_it_is_refused(tmp_path: Path) -> None:
    target = runner_of(load(str(write_folder(tmp_path / "model")), dtype="float32"))
    with pytest.raises(OptionError, match=r"(?s)none are given.*texts=FILE"):
        recipes.build("fr_spec", target)
