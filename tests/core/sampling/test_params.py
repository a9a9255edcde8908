"""Options are honoured or refused at the door."""

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
        ("top_k", -1),
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
        ("stop_token_ids", "a"),
        ("logit_bias", None),
        ("logit_bias", {5: 3.5e38}),
        ("repetition_penalty", 1e-38),
        ("frequency_penalty", -1e38),
    ],
)
def test_a_senseless_option_is_refused_with_its_name_and_a_hint(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"(?s){name}.*hint:"):
        SamplingParams(**{name: value})


def test_a_single_stop_string_is_one_stop_string() -> None:
    options: dict[str, Any] = {"stop": "END"}
    assert SamplingParams(**options).stop == ("END",)


def test_token_ids_must_exist() -> None:
    with pytest.raises(OptionError, match="vocabulary"):
        SamplingParams(logit_bias={50: 1.0}).check(50)
