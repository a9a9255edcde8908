"""Traversal verification: a tree of draws is judged from its leaves to its root, a whole path at a time."""

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import OptionError, need_at_least
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.traversal import Traversal

PAPER = Paper(title="Traversal Verification for Speculative Tree Decoding", arxiv="2505.12398")
NAME = "traversal_verification"


def build(
    target: Model,
    *,
    inner: str = "speculative_sampling",
    widths: tuple[int, ...] | None = None,
    paths: int | None = None,
    depth: int | None = None,
) -> Recipe:
    """`widths`: children of every node, level by level (2, 2, 1, 1). `paths`: so many independent paths instead, `depth` (4)
    tokens each."""
    drafter, rule = recipes.drafter(inner, target), Traversal()
    if paths is None:
        if depth is not None:
            raise OptionError(
                f"{NAME}: depth {depth} is of paths, a tree has widths\n"
                f"hint: widths=2,2,1 is a tree of 3 levels; for paths of {depth} tokens add paths=3"
            )
        tree = Static((2, 2, 1, 1) if widths is None else tuple(widths))
        return Recipe(drafter=drafter, policy=tree, verifier=rule, controller=Fixed(len(tree.widths), tree.num_nodes))
    if widths is not None:
        raise OptionError(
            f"{NAME}: widths {tuple(widths)} are a tree, paths {paths} none\nhint: paths and depth, or widths"
        )
    depth = 4 if depth is None else depth
    need_at_least(NAME, paths=(paths, 1), depth=(depth, 1))
    return Recipe(drafter=drafter, policy=Paths(paths), verifier=rule, controller=Fixed(depth, paths * depth))
