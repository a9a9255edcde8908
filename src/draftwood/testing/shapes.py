"""A type checker that looks at shapes and nothing else: jaxtyping annotations, checked at run time, in tests only.

install_import_hook(["draftwood.core"], "draftwood.testing.shapes.shapes_only")
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin, get_type_hints

from jaxtyping import AbstractArray


def shapes_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that arguments and result have the shapes its signature names."""
    if inspect.isclass(function):
        return function
    try:
        hints = {name: hint for name, hint in get_type_hints(function).items() if _arrays(hint)}
    except NameError:
        hints = {}  # a name that only type checkers know
    if not hints:
        return function
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            _check(function, name, hints.get(name), value)
        result = function(*args, **kwargs)
        _check(function, "the result", hints.get("return"), result)
        return result

    return checked


def _arrays(hint: Any) -> list[Any]:
    """The array types inside a hint, unions included."""
    if get_origin(hint) in (Union, types.UnionType):
        return [a for part in get_args(hint) for a in _arrays(part)]
    return [hint] if inspect.isclass(hint) and issubclass(hint, AbstractArray) else []


def _check(function: Callable[..., Any], name: str, hint: Any, value: Any) -> None:
    if hint is None or not hasattr(value, "shape"):
        return
    if not any(isinstance(value, array) for array in _arrays(hint)):
        raise TypeError(f"{function.__qualname__}: {name} is {value.dtype}{tuple(value.shape)}, wanted {hint}")
