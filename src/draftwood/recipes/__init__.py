"""Recipes by name: one file per paper. The file's name is the recipe's name, everywhere.

The folder is listed without importing it; other packages add recipes through the entry-point group `draftwood.recipes`.
A name may carry options: eagle3:depth=7:nodes=60. The option `inner` names the recipe that lends its drafter, and all that
follows it belongs to that recipe: vocab_trim:vocab_size=4096:inner=eagle3:depth=7. `inner=auto` chooses one.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import CompositionError, DraftwoodError, OptionError, UnknownNameError
from draftwood.option_parsing import DRAFTER, checked, converted, excluded, keywords, marked
from draftwood.sizing.choose_drafter import AUTO, candidates, slowness_notes

GROUP = "draftwood.recipes"


def names() -> list[str]:
    """All recipes, ours and those of installed plug-ins, in alphabetical order."""
    return sorted(_own() | set(_plugins()))


def parted(name: str) -> tuple[str, list[str]]:
    """A name and its options, still as KEY=VALUE words. Values may hold colons: draft=first:10."""
    name, sign, rest = name.partition(":")
    words = re.split(r":(?=\w+=)", rest) if sign else []
    first = next((i for i, word in enumerate(words) if word.startswith("inner=")), len(words))
    return name, [*words[:first], ":".join(words[first:])] if first < len(words) else words


def load(name: str) -> ModuleType:
    """The module of one recipe: its PAPER and its build(). A plug-in cannot take the name of a recipe of ours."""
    name = name.partition(":")[0]
    if name in _own():
        return importlib.import_module(f"{__name__}.{name}")
    if name not in names():
        raise UnknownNameError("recipe", name, names())
    try:
        module = _plugins()[name].load()
    except (Exception, SystemExit) as error:  # whatever the code of another package can raise
        raise _broken(name, f"cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(module, "PAPER", None), Paper) or not callable(getattr(module, "build", None)):
        raise _broken(name, "is no recipe: it needs PAPER = Paper(...) and a function build(target, *, ...)")
    return module


def paper(name: str) -> Paper:
    """What a recipe is."""
    return load(name).PAPER


def options(name: str) -> dict[str, inspect.Parameter]:
    """The options of a recipe: the keyword arguments of its build()."""
    return keywords(load(name).build)


def build(name: str, target: Runner, **chosen: Any) -> Recipe:
    """A recipe for this target. Its options are checked against the signature, its parts against each other."""
    name, words = parted(name)
    make = load(name).build
    spelt = converted(name, make, options(name), words)
    if twice := spelt.keys() & chosen.keys():
        raise OptionError(
            f"{name}: {min(twice)} is given twice\nhint: after the recipe's name or as an option, not both"
        )
    chosen = checked(name, make, {**spelt, **chosen})
    if not _leaves_inner_open(make, chosen):
        recipe = _built(name, target, chosen)
        return recipe if chosen else replace(recipe, notes=(*recipe.notes, *slowness_notes(recipe, name, target)))
    refused: CompositionError | None = None
    for inner, note in _candidates(target):
        try:
            recipe = _built(name, target, {**chosen, "inner": inner})
        except CompositionError as error:  # for example, the rule needs draws that this drafter cannot supply
            refused = refused or error
        else:
            return replace(recipe, notes=(note, *recipe.notes, *slowness_notes(recipe, inner, target)))
    assert refused is not None
    raise refused


def drafter(name: str, target: Runner, draws: frozenset[Draw] = frozenset()) -> Drafter:
    """The drafter of a recipe, for another recipe with its own tree and rule; "auto": the most promising one that supplies
    these draws. Options of the lender's tree and rule are refused, because they would have no effect."""
    if name == AUTO:
        found = [drafter(inner, target) for inner, _ in _candidates(target)]
        return next((each for each in found if draws <= each.draws), found[0])
    inner = name
    while inner and inner != AUTO:
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


def _candidates(target: Runner) -> list[tuple[str, str]]:
    return candidates(target, lambda name: drafter(name, target))


def _leaves_inner_open(make: Callable[..., Recipe], chosen: Mapping[str, Any]) -> bool:
    known = keywords(make)
    inner = chosen.get("inner", known["inner"].default) if "inner" in known else None
    return inner == AUTO and "inner" not in excluded(make, chosen)


def _built(name: str, target: Runner, chosen: Mapping[str, Any]) -> Recipe:
    recipe = _made(name, target, chosen)
    try:
        recipe.check(target)
    except CompositionError as error:
        if "inner" not in options(name) or recipe.policy.draw in recipe.drafter.draws:
            raise
        raise CompositionError(f"{error}\n      or another inner: inner=auto, inner=eagle3, inner=fast_draft") from None
    return recipe


def _made(name: str, target: Runner, chosen: Mapping[str, Any]) -> Recipe:
    make = load(name).build
    if name in _own():
        return make(target, **chosen)
    try:
        recipe = make(target, **chosen)
    except DraftwoodError:
        raise
    except Exception as error:
        raise _broken(name, f"cannot be built: {type(error).__name__}: {error}") from error
    if not isinstance(recipe, Recipe):
        raise _broken(name, f"is no recipe: build() returns {type(recipe).__name__}")
    return recipe


def _broken(name: str, how: str) -> OptionError:
    plugin = _plugins()[name]
    package = plugin.module.partition(".")[0] if plugin.dist is None else plugin.dist.name
    return OptionError(f"recipe {name!r} of the plug-in {package!r} {how}\nhint: update or uninstall {package}")


@cache
def _own() -> frozenset[str]:
    return frozenset(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
