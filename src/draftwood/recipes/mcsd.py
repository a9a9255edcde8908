"""MCSD: several candidates for every position, tried one after another against a shrinking residual."""

from typing import Literal

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import Count, Factor, OfDrafter
from draftwood.trees.static import Static
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Multi-Candidate Speculative Decoding",
    arxiv="2401.06706",
    claim="acceptance above single-candidate everywhere",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    widths: tuple[Count, ...] = (2, 1),
    draw: Literal["distinct", "iid"] = "distinct",
    draft_temperature: Factor = 1.0,
) -> Recipe:
    """`widths`: children of every node, level by level; `draw`: without replacement, or independent draws.
    `draft_temperature`: times that of the request, of draws."""
    policy = Static(widths, Draw(draw))
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=policy,
        verifier=Rejection(),
        controller=Fixed(depth=len(policy.widths), nodes=policy.num_nodes),
        draft_temperature=draft_temperature,
    )
