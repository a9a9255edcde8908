"""Recipes by name: one file per paper. The file's name is the recipe's name, everywhere.

The folder is listed without importing it; other packages add recipes through the entry-point group `draftwood.recipes`.
Wherever a name is asked for it may carry options: eagle3:depth=7:nodes=60. An option `inner` names another recipe, and all
that follows is that one's: vocab_trim:rows=4096:inner=eagle3:depth=7.
"""

import importlib
import inspect
import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from draftwood.core.protocols import Drafter, Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import CompositionError, OptionError, UnknownNameError
from draftwood.option_parsing import converted, listed

GROUP = "draftwood.recipes"
_SHAPES = frozenset({"depth", "nodes", "widths", "beam", "paths", "draw", "method", "threshold", "ahead", "delta"})
_OF_SHAPE = _SHAPES | {"width", "roots", "acceptance", "verifier", "counted", "solver", "size"}


def names() -> list[str]:
    """All recipes, ours and those of installed plug-ins, in alphabetical order."""
    own = {path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")}
    return sorted(own | set(_plugins()))


def parted(name: str) -> tuple[str, list[str]]:
    """A name and its options, still as KEY=VALUE words. Values may hold colons: draft=first:10."""
    name, sign, rest = name.partition(":")
    words = re.split(r":(?=\w+=)", rest) if sign else []
    first = next((i for i, word in enumerate(words) if word.startswith("inner=")), len(words))
    return name, [*words[:first], ":".join(words[first:])] if first < len(words) else words


def load(name: str) -> ModuleType:
    """The module of one recipe: its PAPER and its build()."""
    name = name.partition(":")[0]
    if name not in names():
        raise UnknownNameError("recipe", name, names())
    plugin = _plugins().get(name)
    return importlib.import_module(f"{__name__}.{name}") if plugin is None else plugin.load()


def paper(name: str) -> Paper:
    """What a recipe is."""
    return load(name).PAPER


def options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a recipe: the keyword arguments of its build()."""
    parameters = inspect.signature(load(name).build).parameters
    return {key: value for key, value in parameters.items() if value.kind is inspect.Parameter.KEYWORD_ONLY}


def build(name: str, target: Model, **chosen: Any) -> Recipe:
    """A recipe for this target, with its parts checked against each other."""
    name, words = parted(name)
    known = options(name)
    chosen = {**converted(name, load(name).build, known, words), **chosen}
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise OptionError(f"{name} has no option {unknown[0]!r}\nhint: it has {', '.join(known) or 'none'}")
    recipe: Recipe = load(name).build(target, **listed(name, load(name).build, chosen))
    try:
        recipe.check(target)
    except CompositionError as error:
        if "inner" not in known or recipe.policy.draw in recipe.drafter.draws:
            raise
        raise CompositionError(
            f"{error}\n      here: another inner, for example inner=fast_draft or inner=eagle3"
        ) from None
    return recipe


def drafter(name: str, target: Model) -> Drafter:
    """The drafter of a recipe, for a recipe that shapes and judges its guesses in its own way. Options of shape and rule are
    refused there: nobody would heed them."""
    inner = name
    while inner:
        words = {key: value for key, _, value in (word.partition("=") for word in parted(inner)[1])}
        lost = sorted(_OF_SHAPE & words.keys())
        if lost:
            raise OptionError(
                f"{inner!r}: only its drafter is used, {lost[0]!r} would be lost\n"
                f"hint: leave {lost[0]} out, or put it before inner= where it is meant for the outer recipe"
            )
        inner = words.get("inner", "")
    return build(name, target).drafter


def lender(name: str) -> str:
    """The recipe whose drafter this one uses, as `inner` takes it: recipes that borrow theirs unwrapped, and without options
    of shape and rule. One that changes what it borrows, such as a trimmed vocabulary, lends its own."""
    name, words = parted(name)
    known = options(name)
    values = {key: value for key, _, value in (word.partition("=") for word in words)}
    if "inner" in known:
        inner = values.get("inner", known["inner"].default)
        # Where the drafter is another's, weights are of something beside it.
        if inner and not known.keys() - _OF_SHAPE - {"inner", "draft", "weights"}:
            return lender(inner)
    return ":".join([name, *(word for word in words if word.partition("=")[0] not in _OF_SHAPE)])


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
