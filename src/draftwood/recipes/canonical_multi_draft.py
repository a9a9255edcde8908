"""Canonical multi-draft sampling: choose one of several independent draws by the laws, then judge it as one draw."""

from typing import Literal

from draftwood.controllers.fixed import Fixed
from draftwood.core.proposal import Draw
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import OptionError
from draftwood.recipes.speculative_sampling import drafter_of
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.selection import Selection

PAPER = Paper(
    title="Multi-Draft Speculative Sampling: Canonical Decomposition and Theoretical Limits", arxiv="2410.18234"
)


def build(
    target: Model,
    *,
    draft: str = "first:10",
    inner: str = "",
    paths: int = 3,
    depth: int = 4,
    widths: tuple[int, ...] = (),
    solver: Literal["rank", "lp"] = "rank",
    size: int = 5,
) -> Recipe:
    """`widths`: a fixed tree of independent draws instead of `paths` that are `depth` long."""
    if widths and (paths, depth) != (3, 4):
        raise OptionError(
            f"widths {tuple(widths)} are a tree, paths {paths} and depth {depth} none\nhint: one or the other"
        )
    if solver != "lp" and size != 5:
        raise OptionError(f"solver {solver!r} has no size, yet it is {size!r}\nhint: 'lp' has one")
    tree = Static(tuple(widths), Draw.IID) if widths else None
    return Recipe(
        drafter=drafter_of(draft, inner, target),
        policy=Paths(paths) if tree is None else tree,
        verifier=Selection(solver, size),
        controller=Fixed(depth, paths * depth) if tree is None else Fixed(len(tree.widths), tree.num_nodes),
    )
