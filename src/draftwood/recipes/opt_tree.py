"""OPT-Tree: of all trees of a size the one that the draft expects most from, rebuilt every round."""

from typing import Annotated

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import OfDrafter, Range, Size
from draftwood.trees.opt_tree import OptTree
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="OPT-Tree: Speculative Decoding with Adaptive Draft Tree Structure",
    arxiv="2406.17276",
    claim="3.2x; more than 10 tokens a step",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    nodes: Size = 5,
    delta: Annotated[float, Range(0)] = 0.5,
    depth: Size = 4,
) -> Recipe:
    """`inner`: the recipe whose drafter is used, with its options. `delta`: tokens that another level must promise."""
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=OptTree(delta),
        verifier=Match(),
        controller=Fixed(depth=depth, nodes=nodes),
    )
