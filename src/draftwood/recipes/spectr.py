"""SpecTr: several independent paths, and at every node all draws judged by one scaled rejection."""

from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.recipes.speculative_sampling import drafter_of
from draftwood.trees.paths import Paths
from draftwood.verifiers.transport import Transport

PAPER = Paper(title="SpecTr: Fast Speculative Decoding via Optimal Transport", arxiv="2310.15141")


def build(target: Model, *, draft: str = "first:10", inner: str = "", paths: int = 4, depth: int = 4) -> Recipe:
    """`draft`: a model, or "first:N"; `inner`: another recipe whose drafter is used instead: eagle, fast_draft."""
    return Recipe(
        drafter=drafter_of(draft, inner, target),
        policy=Paths(paths),
        verifier=Transport(),
        controller=Fixed(depth=depth, nodes=paths * depth),
    )
