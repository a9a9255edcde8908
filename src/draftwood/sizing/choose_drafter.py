"""What drafts where a recipe leaves it open, `inner=auto`: a drafter that ships for the target, else its first layers."""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from draftwood.core.protocols import Drafter, Runner
from draftwood.core.recipe import Recipe
from draftwood.drafters.nets.files.find import command, ships
from draftwood.sizing.choose_size import SLOWER, backend_of, gain, worth
from draftwood.sizing.remembered import remembered
from draftwood.sizing.trials import of_target

AUTO = "auto"
SLOW = "slower than plain decoding here"
TRAINED = {
    "eagle3": "eagle3",
    "fast_draft": "language",
}  # recipes whose drafters can draw, and the kind of their weights
MEASURED = {
    "eagle": "eagle2",
    **{name: name for name in TRAINED},
}  # recipes of fixed trees, and whose acceptance they have
MARGIN = 1.2  # the first of them accepts most; another must be faster than that, because timed rounds are few
_FIRST: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


def candidates(target: Runner, lend: Callable[[str], Drafter]) -> list[tuple[str, str]]:
    """Recipes that can lend their drafter, the one with the highest expected speed first, each with a note for the banner.
    `lend`: the drafter of a recipe. The choice is kept for this target and backend: with most rules the drafter has a part
    in which text a seed gives."""
    trained = [name for name, kind in TRAINED.items() if ships(kind, target)]
    known = of_target(_FIRST, target)
    key = f"{backend_of(target)} {' '.join(trained)}"
    if len(trained) > 1 and key not in known:
        find = partial(_fastest, trained, target, lend)
        known[key] = remembered(target, "drafter", key, partial(_one_of, trained), find)
    trained.sort(key=lambda name: name != known.get(key))
    layers = max(1, target.info.num_layers // 3)
    weak = (
        f"the target's first {layers} of {target.info.num_layers} layers draft, because no trained drafter ships for it"
    )
    return [
        *((name, f"drafter: {name}, which ships for this target (inner=NAME takes another)") for name in trained),
        (f"speculative_sampling:draft=first:{layers}", f"{weak}; to train one: {command('eagle3', target)}"),
    ]


def _fastest(trained: list[str], target: Runner, lend: Callable[[str], Drafter]) -> str:
    speeds = {name: worth(name, target, lend(name)).gain for name in trained}
    return max(trained, key=lambda name: speeds[name] * (MARGIN if name == trained[0] else 1))


def _one_of(trained: list[str], found: Any) -> str:
    if found not in trained:
        raise ValueError(f"no drafter: {found!r}")
    return found


def slowness_notes(recipe: Recipe, inner: str, target: Runner) -> tuple[str, ...]:
    """A note if a tree of fixed size with this drafter is expected to be slower than plain decoding, greedy or sampled."""
    speed = gain(MEASURED[inner], target, recipe) if inner in MEASURED else None
    if speed is None:
        return ()
    sampled = gain(MEASURED[inner], target, recipe, temperature=1.0)
    if speed < SLOWER:
        more = "" if sampled is None else f", {sampled:.2f}x at temperature 1"
        return (f"{SLOW}: expected speed {speed:.2f}x plain decoding{more}. A recipe for study, or for slower targets",)
    if sampled is None or sampled >= SLOWER:
        return ()
    return (f"slower than plain decoding at temperature 1: expected speed {sampled:.2f}x there, {speed:.2f}x at 0",)
