"""Canonical multi-draft sampling: choose one of several independent draws by the distributions, then judge it as one draw."""

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
    paths: int | None = None,
    depth: int | None = None,
    widths: tuple[int, ...] | None = None,
    solver: Literal["rank", "lp"] = "rank",
    size: int = 5,
) -> Recipe:
    """`paths` (3) that are `depth` (4) long; or `widths`: a fixed tree of independent draws instead."""
    if widths is not None and (paths, depth) != (None, None):
        other = f"paths {paths}" if depth is None else f"depth {depth}"
        raise OptionError(
            f"canonical_multi_draft: widths {tuple(widths)} are a tree, {other} is of paths\nhint: one or the other"
        )
    if solver != "lp" and size != 5:
        raise OptionError(f"solver {solver!r} has no size, yet it is {size!r}\nhint: 'lp' has one")
    paths, depth = 3 if paths is None else paths, 4 if depth is None else depth
    tree = None if widths is None else Static(tuple(widths), Draw.IID)
    return Recipe(
        drafter=drafter_of(draft, inner, target),
        policy=Paths(paths) if tree is None else tree,
        verifier=Selection(solver, size),
        controller=Fixed(depth, paths * depth) if tree is None else Fixed(len(tree.widths), tree.num_nodes),
    )
