"""Sequoia: the best static tree for measured acceptance rates, filled with draws without replacement."""

from typing import Annotated

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import OfDrafter, Range, Share, Size
from draftwood.sizing.choose_size import fixed_tree
from draftwood.sizing.sibling_acceptance import measured_acceptance
from draftwood.trees.best_shape import positional
from draftwood.trees.shaped import Shaped
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Sequoia: Scalable, Robust, and Hardware-aware Speculative Decoding",
    arxiv="2402.12374",
    claim="up to 4.04x on one GPU, 9.5x offloaded",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    acceptance: tuple[Share, ...] | None = None,
    temperature: Annotated[float, Range(0)] = 0.0,
    nodes: Size | None = None,
    depth: Size | None = None,
) -> Recipe:
    """`inner`: the recipe whose drafter is used, with its options. `acceptance`: how often the first, second, .. sibling is
    the accepted one, of all times that their parent is accepted; by default measured at `temperature`, once. `nodes`,
    `depth`: by default those that the cost model expects most of."""
    drafter = recipes.drafter(inner, target)
    rates = (
        measured_acceptance(target, drafter, recipes.lender(inner), temperature) if acceptance is None else acceptance
    )
    if nodes is not None and depth is not None:
        tree, notes = Shaped(positional(rates, nodes, depth, "sequoia")), ()
    else:
        parents, choice = fixed_tree(rates, target, drafter, f"sequoia {inner}", nodes, depth)
        tree, notes = Shaped(parents), (choice.note("sequoia", target),)
    return Recipe(
        drafter=drafter,
        policy=tree,
        verifier=Rejection(),
        controller=Fixed(depth=tree.depth, nodes=tree.num_nodes),
        notes=notes,
    )
