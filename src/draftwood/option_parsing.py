"""Options of a function, checked against its signature: types, `Literal`, ranges, and which options go together.

A signature is the only declaration of an option. Python values and KEY=VALUE words of a command line pass the same check.

    def build(target, *, weights: OfDrafter[str] = "auto", depth: Size = 4, draw: Literal["iid", "distinct"] = "iid")
"""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from draftwood.errors import MOST, OptionError

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
EXAMPLES = {"--logit-bias": "42=-5"}
NUMBERS = {int: "a whole number", float: "a number"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest value of an option; both are allowed."""

    least: float = -inf
    most: float = inf

    def __str__(self) -> str:
        if self.most == inf:
            return f"at least {self.least:g}"
        return f"from {self.least:g} to {self.most:g}" if self.least > -inf else f"at most {self.most:g}"


@dataclass(frozen=True, slots=True)
class OnlyWith:
    """The option is used only if another one has this value; None stands for any value but None."""

    option: str
    value: Any = None

    def __str__(self) -> str:
        return self.option if self.value is None else f"{self.option}={self.value}"


@dataclass(frozen=True, slots=True)
class NotWith:
    """The option cannot be given together with these."""

    options: tuple[str, ...]


DRAFTER = "option of the drafter"  # the others are of the tree, the rule and the controller
OfDrafter = Annotated[T, DRAFTER]
Size = Annotated[int, Range(0, MOST)]  # levels or nodes of a draft; 0: no draft
Count = Annotated[int, Range(1, MOST)]
Share = Annotated[float, Range(0, 1)]
Factor = Annotated[float, Range(0.01, 100)]


def words_of(text: str) -> list[str]:
    """The words of a list with commas, each once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def pairs(words: Sequence[str], what: str) -> dict[str, str]:
    """{KEY: VALUE}; a word without "=" and a key given twice are refused."""
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        key = key.strip()
        if not sign or not key:
            raise OptionError(f"{what}: {word!r} is not KEY=VALUE\nhint: for example {EXAMPLES.get(what, 'depth=6')}")
        if key in found:
            raise OptionError(f"{what} {key} is given twice: {found[key]!r} and {value!r}")
        found[key] = value
    return found


def keywords(build: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a function: its keyword-only parameters."""
    return {key: p for key, p in inspect.signature(build).parameters.items() if p.kind is p.KEYWORD_ONLY}


def marked(build: Callable[..., Any], mark: Any) -> set[str]:
    """The options whose annotation carries this mark."""
    hints = _hints(build)
    return {key for key in keywords(build) if mark in _marks(hints.get(key))}


def converted(
    name: str, build: Callable[..., Any], known: Mapping[str, inspect.Parameter], words: Sequence[str]
) -> dict[str, Any]:
    """Options of `build` from KEY=VALUE words. OptionError lists the options there are."""
    chosen = pairs(words, f"{name}: option")
    _refuse_unknown(name, known, chosen)
    hints = _hints(build)
    return {key: _fitted(f"{name}: {key}", _hint(hints, known[key]), text, _parsed) for key, text in chosen.items()}


def checked(name: str, build: Callable[..., Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Options given as Python values. A list may be spelt as on the command line: "2,2"."""
    known = keywords(build)
    _refuse_unknown(name, known, chosen)
    hints = _hints(build)
    values = {key: _fitted(f"{name}: {key}", _hint(hints, known[key]), value) for key, value in chosen.items()}
    for key, value in values.items():
        for mark in _marks(hints.get(key)):
            if isinstance(mark, NotWith):
                for other in (each for each in mark.options if None not in (value, values.get(each))):
                    raise OptionError(
                        f"{name}: {key} {value!r} and {other} {values[other]!r} exclude each other\n"
                        f"hint: leave out {key} or {other}"
                    )
            elif isinstance(mark, OnlyWith):
                there = values.get(mark.option, known[mark.option].default)
                if there is None if mark.value is None else there != mark.value:
                    raise OptionError(
                        f"{name}: {key} {value!r} is used only with {mark}\nhint: add {mark}, or leave out {key}"
                    )
    return values


def excluded(build: Callable[..., Any], chosen: Mapping[str, Any]) -> set[str]:
    """Options that cannot be given together with the chosen ones."""
    hints = _hints(build)
    marks = [mark for key in chosen for mark in _marks(hints.get(key))]
    return {option for mark in marks if isinstance(mark, NotWith) for option in mark.options}


def described(known: Mapping[str, inspect.Parameter]) -> str:
    """depth=6, verifier=rejection, weights"""
    empty = inspect.Parameter.empty
    return ", ".join(key if p.default is empty else f"{key}={p.default}" for key, p in known.items())


def wanted(kind: Any) -> str:
    """What fits an annotation, in words: a whole number from 1 to 64."""
    base, marks = _base(kind), _marks(kind)
    origin, inner = get_origin(base), get_args(base)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if each is type(None) else wanted(each) for each in inner)
    if origin is Literal:
        return " or ".join(str(each) for each in inner)
    if base in (tuple, list) or origin in (tuple, list, Sequence):
        return f"a list with commas, each {wanted(inner[0]) if inner else 'text'}"
    ranges = "".join(f" {mark}" for mark in marks if isinstance(mark, Range))
    words = {bool: "yes or no", str: "text", Path: "a path", Any: "any value", **NUMBERS}
    return words.get(base, f"a {getattr(base, '__name__', base)}, from Python only") + ranges


def biases(words: Sequence[str]) -> dict[int, float]:
    """ID=VALUE words of --logit-bias."""
    return {
        _fitted("--logit-bias: a token id", int, key, _parsed): _fitted(f"--logit-bias {key}", float, value, _parsed)
        for key, value in pairs(words, "--logit-bias").items()
    }


class _Unfit(Exception):
    """A value that an annotation does not allow."""


def _refuse_unknown(name: str, known: Mapping[str, inspect.Parameter], chosen: Mapping[str, Any]) -> None:
    for key in chosen:
        if key not in known:
            raise OptionError(f"{name} has no option {key!r}\nhint: it has {described(known) or 'no options'}")


def _fitted(where: str, kind: Any, given: Any, read: Callable[[Any, Any], Any] | None = None) -> Any:
    """The value of an option; `read` parses it first."""
    try:
        return _checked(kind, given if read is None else read(kind, given))
    except _Unfit:
        raise OptionError(f"{where} cannot be {given!r}\nhint: {wanted(kind)}") from None


def _hints(build: Callable[..., Any]) -> dict[str, Any]:
    """The annotations. Those of another package that cannot be resolved are not checked."""
    try:
        return get_type_hints(build, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _hint(hints: Mapping[str, Any], parameter: inspect.Parameter) -> Any:
    """The annotation, else the default's type, else text."""
    if parameter.name in hints:
        return hints[parameter.name]
    default: Any = parameter.default
    return Any if default in (inspect.Parameter.empty, None) else default.__class__


def _base(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _marks(kind: Any) -> tuple[Any, ...]:
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


def _parsed(kind: Any, text: str) -> Any:
    """Text as a value of this kind; ranges are not looked at here."""
    kind = _base(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in inner and text.lower() in ("none", ""):
            return None
        # Text fits everything, so it is tried last.
        kinds = sorted((each for each in inner if each is not type(None)), key=lambda each: _base(each) is str)
        return _first_that_fits(_parsed, kinds, text)
    if origin is Literal:
        return next((choice for choice in inner if str(choice) == text), text)
    if kind in (tuple, list) or origin in (tuple, list, Sequence):
        return [_parsed(inner[0] if inner else str, part.strip()) for part in text.split(",") if part.strip()]
    if kind is bool and text.lower() in YES + NO:
        return text.lower() in YES
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise _Unfit from None
    if kind not in (bool, str, Path, Any):
        raise _Unfit  # no command line can spell it
    return text


def _checked(kind: Any, value: Any) -> Any:
    """The value, if it is of this kind and in its ranges. Lists become tuples where tuples are wanted."""
    base, marks = _base(kind), _marks(kind)
    origin, inner = get_origin(base), get_args(base)
    if origin in (Union, types.UnionType):
        return _first_that_fits(_checked, inner, value)
    if base in (tuple, list) or origin in (tuple, list, Sequence):
        several = _parsed(base, value) if isinstance(value, str) else value
        if not isinstance(several, list | tuple):
            raise _Unfit
        items = [_checked(inner[0] if inner else Any, each) for each in several]  # pyright: ignore[reportUnknownVariableType]
        return items if list in (base, origin) else tuple(items)
    if base is str and isinstance(value, Path):
        return str(value)
    if not _is_of(base, value) or not all(m.least <= value <= m.most for m in marks if isinstance(m, Range)):
        raise _Unfit
    return base(value) if base in (int, Path) else value


def _is_of(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(kind))
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    # A generic class or a protocol cannot be checked here: the function itself has to.
    return kind is Any or not isinstance(kind, type) or isinstance(value, (str, Path) if kind is Path else kind)


def _first_that_fits(fit: Callable[[Any, Any], Any], kinds: Sequence[Any], value: Any) -> Any:
    for kind in kinds:
        try:
            return fit(kind, value)
        except _Unfit:
            continue
    raise _Unfit
