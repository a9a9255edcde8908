"""Checks a JSON value against the part of JSON Schema that the table of fields uses. The error names the place."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.server.errors import ApiError

Schema = Mapping[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def check(value: Any, schema: Schema, at: str) -> None:
    """ApiError 400 if the value does not fit. `at`: its place, for the message."""
    wrong = fault(value, schema, at)
    if wrong is not None:
        place, reason = wrong
        raise ApiError(400, f"{place}: {reason}", param=place, code="invalid_value")


def fault(value: Any, schema: Schema, at: str) -> tuple[str, str] | None:
    """The first place that does not fit, and why."""
    if "anyOf" in schema:
        return _any_of(value, schema["anyOf"], at)
    kind = schema.get("type")
    if kind is not None and not is_a(value, kind):
        return at, f"is {shown(value)}, expected {_article(kind)}"
    if "enum" in schema and not any(value == each and type(value) is type(each) for each in schema["enum"]):
        return at, f"is {shown(value)}, expected one of {', '.join(map(repr, schema['enum']))}"
    return _limits(value, schema, at) or _inside(value, schema, at)


def is_a(value: Any, kind: str) -> bool:
    """1.0 counts as a whole number, as in JSON Schema."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _any_of(value: Any, several: Sequence[Schema], at: str) -> tuple[str, str] | None:
    faults = [fault(value, each, at) for each in several]
    if None in faults:
        return None
    fitting = [wrong for each, wrong in zip(several, faults, strict=True) if is_a(value, each.get("type", "object"))]
    if fitting:
        return fitting[0]
    kinds = " or ".join(dict.fromkeys(_article(each.get("type", "object")) for each in several))
    return at, f"is {shown(value)}, expected {kinds}"


def _limits(value: Any, schema: Schema, at: str) -> tuple[str, str] | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high, above = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            return at, f"is {shown(value)}, expected {_range(low, high)}"
        if above is not None and not value > above:
            return at, f"is {shown(value)}, expected a number above {above}"
    for kind, size, unit in (
        (str, "Length", "characters"),
        (list, "Items", "entries"),
        (dict, "Properties", "entries"),
    ):
        if isinstance(value, kind):
            low, high = schema.get(f"min{size}"), schema.get(f"max{size}")
            if (low is not None and len(value) < low) or (high is not None and len(value) > high):
                return at, f"has {len(value)} {unit}, expected {_range(low, high)}"
    return None


def _inside(value: Any, schema: Schema, at: str) -> tuple[str, str] | None:
    if isinstance(value, list) and "items" in schema:
        for i, each in enumerate(value):
            if wrong := fault(each, schema["items"], f"{at}[{i}]"):
                return wrong
    if isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name in schema.get("required", ()):
            if name not in value:
                return f"{at}.{name}", "is missing"
        for name, each in value.items():
            if name in known:
                if each is None and name not in schema.get("required", ()):
                    continue  # null is as good as absent
                wrong = fault(each, known[name], f"{at}.{name}")
            elif more is False:
                return f"{at}.{name}", f"is unknown, known: {', '.join(known)}"
            else:
                wrong = fault(each, more, f"{at}.{name}") if isinstance(more, Mapping) else None
            if wrong:
                return wrong
    return None


def _range(low: float | None, high: float | None) -> str:
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"{low} to {high}"


def _article(kind: str) -> str:
    names = {"integer": "a whole number", "array": "a list", "object": "an object", "null": "null"}
    return names.get(kind, f"a {kind}")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
