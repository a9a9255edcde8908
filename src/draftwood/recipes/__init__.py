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
from draftwood.option_parsing import DRAFTER, checked, converted, keywords, marked

GROUP = "draftwood.recipes"


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
    return keywords(load(name).build)


def build(name: str, target: Model, **chosen: Any) -> Recipe:
    """A recipe for this target. Its options are checked against the signature, its parts against each other."""
    name, words = parted(name)
    make = load(name).build
    chosen = {**converted(name, make, options(name), words), **chosen}
    recipe: Recipe = make(target, **checked(name, make, chosen))
    try:
        recipe.check(target)
    except CompositionError as error:
        if "inner" not in options(name) or recipe.policy.draw in recipe.drafter.draws:
            raise
        raise CompositionError(
            f"{error}\n      here: another inner, for example inner=fast_draft or inner=eagle3"
        ) from None
    return recipe


def drafter(name: str, target: Model) -> Drafter:
    """The drafter of a recipe, for another recipe with its own tree and rule. Options of the lender's tree and rule are
    refused, because they would have no effect."""
    inner = name
    while inner:
        inner, chosen = _chosen(whole := inner)
        lost = sorted(chosen.keys() - marked(load(inner).build, DRAFTER))
        if lost:
            raise OptionError(
                f"{whole!r}: only its drafter is used, {lost[0]!r} would have no effect\n"
                f"hint: leave {lost[0]} out, or put it before inner= where it is meant for the outer recipe"
            )
        inner = chosen.get("inner", "")
    return build(name, target).drafter


def lender(name: str) -> str:
    """The recipe that this one borrows its drafter from, with the options of that drafter only. A recipe that changes
    the drafter, for example trims its vocabulary, lends its own."""
    name, chosen = _chosen(name)
    own = marked(load(name).build, DRAFTER)
    if own == {"inner"}:
        return lender(chosen.get("inner") or options(name)["inner"].default)
    return ":".join([name, *(f"{key}={value}" for key, value in chosen.items() if key in own)])


def _chosen(name: str) -> tuple[str, dict[str, str]]:
    """A name and its options as text."""
    name, words = parted(name)
    return name, {key: value for key, _, value in (word.partition("=") for word in words)}


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
