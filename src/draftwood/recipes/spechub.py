"""SpecHub: two drafts for every position, the most probable token and one draw from the others."""

from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import need_size
from draftwood.recipes.speculative_sampling import drafter_of
from draftwood.trees.greedy import BestAndOne
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(title="SpecHub: Provable Acceleration to Multi-Draft Speculative Decoding", arxiv="2411.05289")


def build(target: Model, *, draft: str = "first:10", inner: str = "", depth: int = 3) -> Recipe:
    """`depth`: levels, each twice as wide as the one before."""
    need_size("spechub", depth=(depth, 0))
    policy = BestAndOne((2,) * depth)
    return Recipe(
        drafter=drafter_of(draft, inner, target),
        policy=policy,
        verifier=Rejection(),
        controller=Fixed(depth=depth, nodes=policy.num_nodes),
    )
