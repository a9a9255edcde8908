"""DySpec: the tree grows draw by draw where the draft expects acceptance, judged by rejection."""

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import OptionError
from draftwood.trees.pending import Pending
from draftwood.trees.threshold import Threshold
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(title="DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure", arxiv="2410.11744")


def build(
    target: Model,
    *,
    inner: str = "speculative_sampling",
    nodes: int = 12,
    depth: int = 8,
    threshold: float | None = None,
    ahead: int | None = None,
) -> Recipe:
    """`inner`: the recipe whose drafter is used, with its options. `threshold`: a pass per level and every draw worth more;
    otherwise a heap, whose passes run `ahead` nodes each."""
    if threshold is not None and ahead is not None:
        raise OptionError(f"dyspec: ahead is {ahead!r}, but a threshold runs whole levels\nhint: leave out one of them")
    heap = Pending(4 if ahead is None else ahead)
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=heap if threshold is None else Threshold(threshold),
        verifier=Rejection(),
        controller=Fixed(depth=depth, nodes=nodes),
    )
