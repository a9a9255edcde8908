"""Traversal verification: a tree of draws is judged from its leaves to its root, a whole path at a time."""

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import need_at_least
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.traversal import Traversal

PAPER = Paper(title="Traversal Verification for Speculative Tree Decoding", arxiv="2505.12398")


def build(
    target: Model, *, inner: str = "speculative_sampling", widths: tuple[int, ...] = (2, 2, 1, 1), paths: int = 0
) -> Recipe:
    """`widths`: children of every node, level by level. `paths`: so many independent paths of that many levels instead."""
    need_at_least("traversal_verification", paths=(paths, 0))
    tree = Static(tuple(widths))
    depth = len(tree.widths)
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=Paths(paths) if paths else tree,
        verifier=Traversal(),
        controller=Fixed(depth=depth, nodes=paths * depth if paths else tree.num_nodes),
    )
