"""Optimal multi-draft decoding: the best tokens of the draft and one draw from the rest, which one rejection judges."""

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import Count, OfDrafter
from draftwood.trees.best_and_one import BestAndOne
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Towards Optimal Multi-draft Speculative Decoding",
    arxiv="2502.18779",
    claim="first measured bound",
)


def build(target: Runner, *, inner: OfDrafter[str] = "auto", widths: tuple[Count, ...] = (2, 1)) -> Recipe:
    """`widths`: children of every node, level by level; the last of each node is drawn, the others are the best."""
    policy = BestAndOne(widths)
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=policy,
        verifier=Rejection(),
        controller=Fixed(depth=len(policy.widths), nodes=policy.num_nodes),
    )
