"""One table: the checks, the description and the guide agree with it, and every field is tested."""

from pathlib import Path
from typing import Any

import pytest

from draftwood.server.asked import asked
from draftwood.server.errors import ApiError
from draftwood.server.fields import CHAT, FIELDS, TEXT, Kind, body_schema, fields_of, guide_table
from draftwood.server.openapi import description

ROOT = Path(__file__).resolve().parents[2]
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    TEXT: {"model": "m", "prompt": "a"},
}


@pytest.mark.parametrize("where", [CHAT, TEXT])
def test_the_description_has_exactly_the_fields_that_are_taken(where: str) -> None:
    path = "/v1/chat/completions" if where == CHAT else "/v1/completions"
    body = description()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    taken = {name for name, field in fields_of(where).items() if field.kind is not Kind.REFUSED}
    assert set(body["properties"]) == taken and body["additionalProperties"] is False
    assert set(body["required"]) == set(LEAST[where])


@pytest.mark.parametrize("where", [CHAT, TEXT])
def test_every_refused_field_is_refused_by_name_and_null_is_as_good_as_absent(where: str) -> None:
    plain = asked(LEAST[where], where)
    for field in fields_of(where).values():
        if not field.required:
            assert asked({**LEAST[where], field.name: None}, where) == plain
        if field.kind is Kind.REFUSED:
            with pytest.raises(ApiError, match=field.text.split("\n")[0]) as refused:
                asked({**LEAST[where], field.name: "x"}, where)
            assert refused.value.param == field.name and refused.value.status == 400


def test_a_field_that_is_accepted_changes_nothing() -> None:
    values = {"string": "x", "boolean": True, "object": {"a": "b"}}
    for field in FIELDS:
        if field.kind is Kind.ACCEPTED:
            for where in field.where:
                assert asked({**LEAST[where], field.name: values[field.schema["type"]]}, where) == asked(
                    LEAST[where], where
                )


def test_a_field_that_is_honoured_changes_what_is_asked() -> None:
    """Twin of the last one: each honoured field changes the request."""
    values: dict[str, Any] = {
        "n": 2, "stream": True, "max_tokens": 7, "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.5, "top_k": 3,
        "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1, "logit_bias": {"5": 1},
        "seed": 1, "stop": ["x"], "stop_token_ids": [5], "min_tokens": 2, "ignore_eos": True, "timeout": 5,
        "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"},
        "prediction": {"type": "content", "content": "b"}, "speculation": {"enabled": False}, "top_logprobs": 2,
    }  # fmt: skip
    more: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}}
    values["stream_options"] = {"include_usage": True}
    for where in (CHAT, TEXT):
        for name, field in fields_of(where).items():
            if field.kind is Kind.HONOURED and not field.required:
                base = {**LEAST[where], **more.get(name, {})}
                value = values.get(name, True if where == CHAT else 1)
                assert asked({**base, name: value}, where) != asked(base, where), name


def test_the_table_of_the_guide_is_the_table() -> None:
    guide = (ROOT / "docs" / "guides" / "server.md").read_text("utf-8")
    assert guide_table() in guide


def test_no_field_stands_twice() -> None:
    for where in (CHAT, TEXT):
        names = [field.name for field in FIELDS if where in field.where]
        assert (
            len(names)
            == len(set(names))
            == len(body_schema(where)["properties"])
            + sum(field.kind is Kind.REFUSED for field in fields_of(where).values())
        )
