"""Predictions change how fast a text is written, not the text; a recipe that drafts from none says so."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.prediction import Prediction
from draftwood.errors import OptionError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from planted_rules import FirstCopy

TARGET = tiny_runner(2)
V = TARGET.info.vocab_size
PROMPTS = [([1 + i, 2, 3, 4] * 6)[: 6 + 2 * i] for i in range(8)]


def alternating(tokens: Sequence[int]) -> torch.Tensor:
    """Even and odd tokens take turns."""
    return torch.arange(V) % 2 == len(tokens) % 2


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "grammar": {"grammar": alternating},
    "cut": {"top_p": 0.8, "top_k": 40, "min_p": 0.01, "temperature": 0.7},
    "words": {"bad_words": ((3,), (1, 2)), "logit_bias": {4: 2.0, 9: -3.0}, "min_tokens": 9, "stop_token_ids": (5,)},
}


def served(recipe: Recipe, way: str, given: Sequence[Sequence[int]] = ((),) * 8) -> list[Request]:
    options = {"temperature": 1.0, "max_tokens": 30, **WAYS[way]}
    each = [SamplingParams(seed=i, prediction=tuple(given[i]), **options) for i in range(8)]
    return serve(make_engine(TARGET, recipe), PROMPTS, each)


def edited(answer: list[int]) -> list[int]:
    """A token replaced, two deleted, two inserted, and a wrong end."""
    return [*answer[:4], (answer[4] + 1) % V, *answer[7:14], 1, 2, *answer[14:24], 7, 7]


@pytest.mark.parametrize("name", ["prediction:depth=4:nodes=12", "prediction", "auto"])
@pytest.mark.parametrize("way", WAYS)
def test_the_text_is_that_of_plain_decoding_whatever_is_accepted(way: str, name: str) -> None:
    wanted = [r.output for r in served(recipes.build("autoregressive", TARGET), way)]
    done = served(recipes.build(name, TARGET), way, [edited(answer) for answer in wanted])
    assert [r.output for r in done] == wanted
    assert {r.stats.disabled for r in done} == {None}
    if "nodes" in name:
        rounds = [sum(getattr(r.stats, f"rounds_{what}") for r in done) for what in ("all", "some", "none")]
        assert min(rounds) > 0, rounds
        assert sum(r.stats.accepted_prediction_tokens for r in done) > 60


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_a_rule_that_accepts_every_predicted_token_writes_another_text(way: str) -> None:
    wanted = [r.output for r in served(recipes.build("autoregressive", TARGET), way)]
    wrong = replace(recipes.build("prediction", TARGET, nodes=12), verifier=FirstCopy())
    assert [r.output for r in served(wrong, way, [edited(answer) for answer in wanted])] != wanted


def test_names_carry_options() -> None:
    made: Any = recipes.build("prediction:depth=5:nodes=9", TARGET)
    assert isinstance(made.drafter, Prediction) and (made.controller.depth, made.controller.nodes) == (5, 9)
    assert made.needs.prediction and recipes.build("prediction", TARGET).needs.prediction
    with pytest.raises(OptionError, match="depth"):
        recipes.build("prediction", TARGET, depth=-1)


# --- with a tokenizer


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(write_folder(tmp_path_factory.mktemp("model"))))


OPTIONS: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "seed": 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_prediction_is_a_text_or_token_ids(loaded: Loaded, temperature: float) -> None:
    plain = LLM(loaded, "autoregressive").generate("some text", temperature=temperature, **OPTIONS)
    llm = LLM(loaded, "prediction", nodes=12)
    for given in (plain.token_ids, list(plain.token_ids), torch.tensor(plain.token_ids)):
        answer = llm.generate("some text", temperature=temperature, prediction=given, **OPTIONS)
        assert answer.token_ids == plain.token_ids and answer.tokens_per_pass > 5
        assert answer.to_dict()["stats"]["accepted_prediction_tokens"] > 30 and not answer.notes
    answers = llm.generate(["x", "y"], temperature=temperature, prediction="some text ü", **OPTIONS)
    assert all(answer.stats.draft_tokens > 0 for answer in answers)


def test_samples_of_one_prompt_share_their_prediction(loaded: Loaded) -> None:
    options = {**OPTIONS, "temperature": 1.0, "n": 2}
    plain = LLM(loaded, "autoregressive").generate("some text", **options)
    answer = LLM(loaded, "prediction", nodes=12).generate("some text", prediction=plain.token_ids, **options)
    assert [s.token_ids for s in answer.samples] == [s.token_ids for s in plain.samples]
    first, second = (s.stats.accepted_prediction_tokens for s in answer.samples)
    assert first > 30 > second


def test_a_recipe_that_drafts_from_no_prediction_says_so_and_writes_the_same(loaded: Loaded) -> None:
    llm = LLM(loaded, "prompt_lookup")
    plain, answer = llm.generate("some text", **OPTIONS), llm.generate("some text", prediction="abc", **OPTIONS)
    assert answer.token_ids == plain.token_ids and plain.notes == ()
    assert answer.notes == ("the recipe prompt_lookup drafts from no prediction, so it was not used",)
    assert answer.to_dict()["notes"] == list(answer.notes) and "notes" not in plain.to_dict()
    stats = answer.to_dict()["stats"]
    assert (stats["accepted_prediction_tokens"], stats["rejected_prediction_tokens"]) == (0, 0)


@pytest.mark.parametrize("recipe", ["prediction", "autoregressive"])
def test_ids_outside_the_vocabulary_are_refused_at_the_door(loaded: Loaded, recipe: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"token id cannot be \[258\]"):
        LLM(loaded, recipe).generate("some text", prediction=[1, 258])
