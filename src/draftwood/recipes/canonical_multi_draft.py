"""Canonical multi-draft sampling: select one of several independent draws, then verify it as a single draw."""

from typing import Annotated, Literal

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import Count, NotWith, OfDrafter, OnlyWith, Range, Size
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.selection import Selection

PAPER = Paper(
    title="Multi-Draft Speculative Sampling: Canonical Decomposition and Theoretical Limits",
    arxiv="2410.18234",
    claim="block efficiency above SpecTr and SpecInfer",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    paths: Count = 2,
    depth: Size = 3,
    widths: Annotated[tuple[Count, ...] | None, NotWith(("paths", "depth"))] = None,
    solver: Literal["rank", "lp"] = "rank",
    size: Annotated[int, Range(2), OnlyWith("solver", "lp")] = 5,
) -> Recipe:
    """`paths` that are `depth` tokens long, or `widths`: a fixed tree of independent draws instead."""
    tree = Paths(paths) if widths is None else Static(widths, Draw.IID)
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=tree,
        verifier=Selection(solver, size),
        controller=Fixed(depth, paths * depth) if isinstance(tree, Paths) else Fixed(len(tree.widths), tree.num_nodes),
    )
