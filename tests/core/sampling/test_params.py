"""Options are honoured or refused at the door."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -2),
        ("n", 0),
        ("n", 2),
        ("n", True),
        ("ignore_eos", 1),
        ("grammar", "abc"),
        ("include_stop_str_in_output", "yes"),
        ("min_p", 2.0),
        ("max_tokens", 0),
        ("min_tokens", 300),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("inf")),
        ("stop", ("",)),
        ("bad_words", ((),)),
        ("logprobs", 1000),
        ("logit_bias", {3: float("nan")}),
        ("seed", 2**63),
        ("seed", 1.5),
        ("temperature", 1e39),
        ("top_k", 2.5),
        ("top_k", True),
        ("max_tokens", "2"),
        ("max_tokens", None),
        ("stop", (5,)),
        ("bad_words", ("the",)),
        ("bad_words", "abc"),
        ("bad_words", [5]),
        ("bad_words", [None]),
        ("bad_words", [b"a"]),
        ("bad_words", 5),
        ("stop_token_ids", "a"),
        ("logit_bias", 5),
        ("logit_bias", {5: 3.5e38}),
        ("repetition_penalty", 1e-38),
        ("frequency_penalty", -1e38),
        ("tenant", 7),
        ("prediction", 7),
        ("prediction", b"text"),
        ("prediction", ["a", "b"]),
        ("prediction", [1, 2.0]),
        ("prediction", [True]),
    ],
)
def test_a_senseless_option_is_refused_with_its_name_and_a_hint(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"(?s){name}.*hint:"):
        SamplingParams(**{name: value})


def test_a_single_stop_string_is_one_stop_string() -> None:
    options: dict[str, Any] = {"stop": "END"}
    assert SamplingParams(**options).stop == ("END",)


def test_no_tenant_is_the_empty_name() -> None:
    nobody: Any = None
    assert SamplingParams(tenant=nobody).tenant == SamplingParams().tenant == ""


def test_minus_one_keeps_every_token_as_zero_does() -> None:
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


@pytest.mark.parametrize(
    ("options", "hint"),
    [({"max_new_tokens": 5}, "did you mean 'max_tokens'"), ({"warmth": 3}, "one of n, temperature, top_k")],
)
def test_unknown_option_is_refused_with_the_nearest_or_the_list(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(OptionError, match=f"unknown sampling option: '{next(iter(options))}'\nhint: {hint}"):
        SamplingParams(**options)
    with pytest.raises(OptionError, match=hint):
        replace(SamplingParams(), **options)


def test_options_have_names() -> None:
    with pytest.raises(OptionError, match="hint: SamplingParams"):
        SamplingParams(0.7)  # type: ignore[call-arg]


def test_params_can_be_copied_and_pickled() -> None:
    params = SamplingParams(temperature=0.7, stop="x")  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(params)) == copy.deepcopy(params) == params


def test_several_samples_need_a_temperature() -> None:
    assert SamplingParams(n=3, temperature=1.0).n == 3
    with pytest.raises(OptionError, match=r"n cannot be 3\nhint: .*temperature"):
        SamplingParams(n=3)


def test_token_ids_must_exist() -> None:
    with pytest.raises(OptionError, match="vocabulary"):
        SamplingParams(logit_bias={50: 1.0}).check(50)


def test_a_prediction_is_a_text_or_token_ids_and_an_empty_one_is_none() -> None:
    ids: Any = [1, 2]
    assert SamplingParams(prediction=ids).prediction == (1, 2)
    assert SamplingParams(prediction="text").prediction == "text"
    assert {SamplingParams(prediction=empty).prediction for empty in (None, "", ())} == {None}


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        ((1, 9), r"token id cannot be \[9\]\nhint: .*ends at 8"),
        ((-1,), "token id"),
        ("text", "(?s)prediction.*LLM's methods"),
    ],
)
def test_an_engine_refuses_predictions_that_are_not_token_ids_of_its_vocabulary(prediction: Any, message: str) -> None:
    SamplingParams(prediction=(0, 8)).check(9)
    with pytest.raises(OptionError, match=message):
        SamplingParams(prediction=prediction).check(9)


@pytest.mark.parametrize("name", ["max_draft_depth", "max_draft_nodes", "max_draft_tokens"])
def test_limits_of_drafts_are_whole_numbers_or_none(name: str) -> None:
    def of(value: Any) -> Any:
        options: dict[str, Any] = {name: value}
        return getattr(SamplingParams(**options), name)

    assert of(0) == 0 and of(None) is None
    for wrong in (-1, 1.5, True, "3"):
        with pytest.raises(OptionError, match=name):
            of(wrong)
