"""A type checker for shapes only: jaxtyping annotations, checked at run time, in tests.

install_import_hook(["draftwood.core"], "draftwood.testing.shape_checker.shapes_only")
"""

import functools
import importlib
import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, Union, get_args, get_origin

from jaxtyping import AbstractArray

_NAMED: set[str] = set()  # functions whose signatures name shapes, as module:name
_CALLED: set[str] = set()  # those of them that were called


def shapes_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that arguments and result have the shapes its signature names."""
    if inspect.isclass(function):
        return function
    # A name imported for type checkers only is still a string here, and no array.
    hints = {name: hint for name, hint in function.__annotations__.items() if _arrays(hint)}
    if not hints:
        return function
    places = {name: i for i, name in enumerate(inspect.signature(function).parameters) if name in hints}
    known = f"{function.__module__}:{function.__qualname__}"
    _NAMED.add(known)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _CALLED.add(known)
        for name, i in places.items():
            _check(function, name, hints[name], args[i] if i < len(args) else kwargs.get(name))
        result = function(*args, **kwargs)
        if "return" in hints:
            _check(function, "the result", hints["return"], result)
        return result

    return checked


def uncalled(packages: Iterable[str]) -> list[str]:
    """Functions of these packages that name shapes and were never called under the checker. Protocols are left out."""
    modules = [m.name for p in packages for m in pkgutil.walk_packages(importlib.import_module(p).__path__, f"{p}.")]
    for module in modules:
        importlib.import_module(module)
    return sorted(name for name in _NAMED - _CALLED if name.partition(":")[0] in modules and not _promise(name))


def _promise(name: str) -> bool:
    module, _, path = name.partition(":")
    owner = sys.modules[module]
    for part in path.split(".")[:-1]:
        owner = getattr(owner, part, None)
    return getattr(owner, "_is_protocol", False)


@functools.cache
def _arrays(hint: Any) -> tuple[Any, ...]:
    """The array types inside a hint, unions included."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(a for part in get_args(hint) for a in _arrays(part))
    return (hint,) if inspect.isclass(hint) and issubclass(hint, AbstractArray) else ()


def _check(function: Callable[..., Any], name: str, hint: Any, value: Any) -> None:
    if hasattr(value, "shape") and not any(isinstance(value, array) for array in _arrays(hint)):
        raise TypeError(f"{function.__qualname__}: {name} is {value.dtype}{tuple(value.shape)}, wanted {hint}")
