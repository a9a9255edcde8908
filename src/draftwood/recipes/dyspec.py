"""DySpec: the tree grows draw by draw where the draft expects acceptance, judged by rejection."""

from typing import Annotated

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import Count, Factor, NotWith, OfDrafter, Share, Size
from draftwood.trees.most_valuable_first import MostValuableFirst
from draftwood.trees.threshold import Threshold
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="DySpec: Faster Speculative Decoding with Dynamic Token Tree Structure",
    arxiv="2410.11744",
    claim="up to 9.1x throughput at low temperature",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    nodes: Size = 3,
    depth: Size = 3,
    threshold: Annotated[Share | None, NotWith(("ahead",))] = None,
    ahead: Count = 4,
    draft_temperature: Factor = 1.0,
) -> Recipe:
    """`threshold`: one draft pass per level, and every draw worth more than this; otherwise a heap, with one draft pass for
    every `ahead` nodes. `draft_temperature`: times that of the request, of draws."""
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=MostValuableFirst(ahead) if threshold is None else Threshold(threshold),
        verifier=Rejection(),
        controller=Fixed(depth=depth, nodes=nodes),
        draft_temperature=draft_temperature,
    )
