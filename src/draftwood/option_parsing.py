"""KEY=VALUE words as Python values, by the types of the function that will get them."""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from draftwood.errors import OptionError

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def pairs(words: Sequence[str], what: str) -> dict[str, str]:
    """{KEY: VALUE}; a word without "=" and a key given twice are refused."""
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        key = key.strip()
        if not sign or not key:
            raise OptionError(f"{what} {word!r} is not KEY=VALUE\nhint: for example {what} {EXAMPLES.get(what, 'a=1')}")
        if key in found:
            raise OptionError(f"{what} {key} is given twice: {found[key]!r} and {value!r}")
        found[key] = value
    return found


EXAMPLES = {"--option": "depth=6", "--logit-bias": "42=-5"}


def converted(
    name: str, build: Callable[..., Any], known: Mapping[str, inspect.Parameter], words: Sequence[str]
) -> dict[str, Any]:
    """Options of `build` from KEY=VALUE words. OptionError lists the options there are."""
    chosen = pairs(words, "--option")
    for key in chosen:
        if key not in known:
            raise OptionError(f"{name} has no option {key!r}\nhint: it has {described(known) or 'no options'}")
    hints = get_type_hints(build) if chosen else {}
    return {key: _value(f"{name}: {key}", hint_of(hints, known[key]), value) for key, value in chosen.items()}


def listed(name: str, build: Callable[..., Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Options given in Python: where a list is wanted, the command line's spelling of one is understood, too: "2,2"."""
    if not any(isinstance(value, str) for value in chosen.values()):
        return dict(chosen)
    hints = get_type_hints(build)
    return {
        key: _value(f"{name}: {key}", hints[key], value)
        if isinstance(value, str) and _is_list(hints.get(key))
        else value
        for key, value in chosen.items()
    }


def _is_list(kind: Any) -> bool:
    """A list, or a list or nothing."""
    several = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return all(k is type(None) or get_origin(k) in (tuple, list) for k in several)


def described(known: Mapping[str, inspect.Parameter]) -> str:
    """depth=6, verifier=rejection, weights"""
    empty = inspect.Parameter.empty
    return ", ".join(key if p.default is empty else f"{key}={p.default}" for key, p in known.items())


def hint_of(hints: Mapping[str, Any], parameter: inspect.Parameter) -> Any:
    """The annotation, else the default's type, else text."""
    if parameter.name in hints:
        return hints[parameter.name]
    default: Any = parameter.default
    return str if default in (inspect.Parameter.empty, None) else default.__class__


def _value(where: str, kind: Any, text: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _first_that_fits(where, inner, text)
    if origin is Literal:
        for choice in inner:
            if str(choice) == text:
                return choice
        raise OptionError(f"{where} cannot be {text!r}\nhint: {', '.join(str(c) for c in inner)}")
    if kind in (tuple, list) or origin in (tuple, list, Sequence):
        each = inner[0] if inner else str
        items = [_value(where, each, part.strip()) for part in text.split(",") if part.strip()]
        return items if list in (kind, origin) else tuple(items)
    if kind is bool:
        if text.lower() not in YES + NO:
            raise OptionError(f"{where} cannot be {text!r}\nhint: yes or no")
        return text.lower() in YES
    if kind in (str, Any):
        return text
    if kind in (int, float, Path):
        return _scalar(where, kind, text)
    raise OptionError(f"{where} wants a {kind}, which no command line can spell\nhint: use it from Python")


def _first_that_fits(where: str, kinds: tuple[Any, ...], text: str) -> Any:
    if type(None) in kinds and text.lower() in ("none", ""):
        return None
    problem: OptionError | None = None
    # Text fits everything, so it is tried last.
    for kind in sorted((k for k in kinds if k is not type(None)), key=lambda k: k is str):
        try:
            return _value(where, kind, text)
        except OptionError as error:
            problem = problem or error
    assert problem is not None
    raise problem


def _scalar(where: str, kind: Any, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        what = {int: "a whole number", float: "a number"}[kind]
        raise OptionError(f"{where} cannot be {text!r}\nhint: {what}") from None


def biases(words: Sequence[str]) -> dict[int, float]:
    """ID=VALUE words of --logit-bias."""
    return {
        _scalar("--logit-bias: a token id", int, key): _scalar(f"--logit-bias {key}", float, value)
        for key, value in pairs(words, "--logit-bias").items()
    }
