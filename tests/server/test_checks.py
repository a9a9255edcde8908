"""The checks agree with JSON Schema on the part of it that the table uses, and name the place."""

from typing import Any

import pytest

from draftwood.server.checks import check, fault
from draftwood.server.errors import ApiError
from draftwood.server.fields import CHAT, TEXT, body_schema

jsonschema = pytest.importorskip("jsonschema_rs")

NESTED = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}}


@pytest.mark.parametrize(
    ("value", "schema", "place"),
    [
        ("a", {"type": "integer"}, "x"),
        (True, {"type": "integer"}, "x"),
        (True, {"type": "number"}, "x"),
        (1.5, {"type": "integer"}, "x"),
        (1.0, {"type": "integer"}, None),
        (1, {"type": "boolean"}, "x"),
        (3, {"type": "integer", "maximum": 2}, "x"),
        (0, {"type": "number", "exclusiveMinimum": 0}, "x"),
        ("", {"type": "string", "minLength": 1}, "x"),
        ([1, "a"], {"type": "array", "items": {"type": "integer"}}, "x[1]"),
        ([1, 2], {"type": "array", "maxItems": 1}, "x"),
        ({"a": {"b": 1}}, NESTED, "x.a.b"),
        ({"c": 1}, {"type": "object", "properties": {"a": {}}, "additionalProperties": False}, "x.c"),
        ({"c": "d"}, {"type": "object", "additionalProperties": {"type": "number"}}, "x.c"),
        ({}, {"type": "object", "required": ["a"]}, "x.a"),
        ("b", {"type": "string", "enum": ["a"]}, "x"),
        (["a"], {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, None),
        ([1], {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}, "x[0]"),
        (1, {"anyOf": [{"type": "string"}, {"type": "array"}]}, "x"),
    ],
)  # fmt: skip
def test_a_value_fits_where_a_validator_says_so(value: Any, schema: dict[str, Any], place: str | None) -> None:
    assert jsonschema.is_valid(schema, value) == (place is None)
    found = fault(value, schema, "x")
    assert (found and found[0]) == place
    if place is not None:
        with pytest.raises(ApiError) as error:
            check(value, schema, "x")
        assert error.value.param == place and error.value.status == 400


@pytest.mark.parametrize("where", [CHAT, TEXT])
def test_the_table_is_valid_json_schema(where: str) -> None:
    assert jsonschema.meta.is_valid(body_schema(where))
