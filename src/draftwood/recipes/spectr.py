"""SpecTr: several independent paths, and at every node all draws judged by one scaled rejection."""

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.trees.paths import Paths
from draftwood.verifiers.transport import Transport

PAPER = Paper(
    title="SpecTr: Fast Speculative Decoding via Optimal Transport",
    arxiv="2310.15141",
    claim="2.13x, 1.37x over plain speculation",
)


def build(target: Runner, *, inner: OfDrafter[str] = "auto", paths: Count = 2, depth: Size = 3) -> Recipe:
    """`draft`: a model, or "first:N"; `inner`: another recipe whose drafter is used instead: eagle, fast_draft."""
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=Paths(paths),
        verifier=Transport(),
        controller=Fixed(depth=depth, nodes=paths * depth),
    )
