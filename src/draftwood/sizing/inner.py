"""What drafts where a recipe leaves it open, `inner=auto`: a drafter that ships for the target, else its first layers."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from draftwood.core.protocols import Drafter, Model
from draftwood.core.recipe import Recipe
from draftwood.drafters.nets.find import command, ships
from draftwood.sizing.choose import SLOWER, gain, worth
from draftwood.sizing.trials import of_target

AUTO = "auto"
TRAINED = {
    "eagle3": "eagle3",
    "fast_draft": "language",
}  # recipes whose drafters can draw, and the kind of their weights
MEASURED = {
    "eagle": "eagle2",
    **{name: name for name in TRAINED},
}  # recipes of fixed trees, and whose acceptance they have
MARGIN = 1.1  # the first of them accepts most; another must be faster than that, because timed rounds are few
_SPEEDS: WeakKeyDictionary[Any, dict[str, float]] = WeakKeyDictionary()


def candidates(target: Model, lend: Callable[[str], Drafter]) -> list[tuple[str, str]]:
    """Recipes that can lend their drafter, the one with the highest expected speed first, each with a note for the banner.
    `lend`: the drafter of a recipe."""
    trained = [name for name, kind in TRAINED.items() if ships(kind, target)]
    speeds = of_target(_SPEEDS, target)
    for name in trained:
        if name not in speeds:
            speeds[name] = worth(name, target, lend(name)).gain
    first = trained[0] if trained else ""
    trained.sort(key=lambda name: -speeds[name] * (MARGIN if name == first else 1))
    listed = ", ".join(f"{name} {speeds[name]:.2f}x" for name in trained)
    layers = max(1, target.num_layers // 3)
    weak = f"the target's first {layers} of {target.num_layers} layers draft, because no trained drafter ships for it"
    return [
        *(
            (name, f"inner={name} is chosen; expected of plain decoding's speed, at the best size: {listed}")
            for name in trained
        ),
        (f"speculative_sampling:draft=first:{layers}", f"{weak}; to train one: {command('eagle3', target)}"),
    ]


def warnings(recipe: Recipe, inner: str, target: Model) -> tuple[str, ...]:
    """A note if a tree of fixed size with this drafter is expected to be slower than plain decoding."""
    speed = gain(MEASURED[inner], target, recipe) if inner in MEASURED else None
    if speed is None or speed >= SLOWER:
        return ()
    return (f"slower than plain decoding here, about {speed:.2f}x expected: a recipe for study, or for slower targets",)
