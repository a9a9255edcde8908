"""MCSD: several candidates for every position, tried one after another against a shrinking residual."""

from typing import Literal

from draftwood.controllers.fixed import Fixed
from draftwood.core.proposal import Draw
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import OptionError
from draftwood.recipes.speculative_sampling import drafter_of
from draftwood.trees.static import Static
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(title="Multi-Candidate Speculative Decoding", arxiv="2401.06706")


def build(
    target: Model,
    *,
    draft: str = "first:10",
    inner: str = "",
    widths: tuple[int, ...] = (4, 2, 2),
    draw: Literal["distinct", "iid"] = "distinct",
) -> Recipe:
    """`widths`: children of every node, level by level; `draw`: without replacement, or independent draws."""
    if draw not in ("distinct", "iid"):
        raise OptionError(f"draw cannot be {draw!r}\nhint: 'distinct' or 'iid'")
    policy = Static(tuple(widths), Draw(draw))
    return Recipe(
        drafter=drafter_of(draft, inner, target),
        policy=policy,
        verifier=Rejection(),
        controller=Fixed(depth=len(policy.widths), nodes=policy.num_nodes),
    )
