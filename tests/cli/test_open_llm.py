"""Opening a model: mistakes first, weights last."""

import pytest

from draftwood.cli import open_llm
from draftwood.errors import OptionError, UnknownNameError
from draftwood.llm import LLM


def test_wrong_recipe_or_option_is_found_before_the_model():
    with pytest.raises(UnknownNameError, match="recipe"):
        open_llm.open_llm("no such model", "no such recipe")
    with pytest.raises(OptionError, match="depth=10"):
        open_llm.open_llm("no such model", "prompt_lookup", options=["deep=3"])
    with pytest.raises(UnknownNameError, match="model"):
        open_llm.open_llm("no such model", "prompt_lookup", options=["depth=3"])


def test_options_reach_the_recipe():
    assert open_llm.recipe_options("speculative_sampling", ["depth=6", "verifier=match"]) == {
        "depth": 6,
        "verifier": "match",
    }


@pytest.mark.slow
def test_model_opens_with_what_was_asked_for():
    llm = open_llm.open_llm("smollm2", "prompt_lookup", dtype="float64", slots=3, options=["depth=3"])
    assert (llm.config.max_num_seqs, llm.recipe_name) == (3, "prompt_lookup")
    assert llm.loaded.info.dtype.itemsize == 8


def test_twin_shares_weights_and_nothing_else(llm: LLM):
    twin = open_llm.twin(llm)
    assert twin.loaded is llm.loaded and twin.engine is not llm.engine and twin.recipe_name == "autoregressive"
    open_llm.warm_up(twin)
    assert llm.engine.rounds == 0 < twin.engine.rounds
