"""Sequoia: the best static tree for measured acceptance rates, filled with draws without replacement."""

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import OfDrafter, Share, Size
from draftwood.trees.profile import positional
from draftwood.trees.shaped import Shaped
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(title="Sequoia: Scalable, Robust, and Hardware-aware Speculative Decoding", arxiv="2402.12374")


def build(
    target: Model,
    *,
    inner: OfDrafter[str] = "auto",
    acceptance: tuple[Share, ...] = (0.6, 0.2, 0.1),
    nodes: Size = 12,
    depth: Size = 8,
) -> Recipe:
    """`inner`: the recipe whose drafter is used, with its options. `acceptance`: how often the first, second, .. sibling is
    the accepted one, of all times that their parent is accepted."""
    tree = Shaped(positional(acceptance, nodes, depth, "sequoia"))
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=tree,
        verifier=Rejection(),
        controller=Fixed(depth=tree.depth, nodes=tree.num_nodes),
    )
