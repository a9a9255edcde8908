"""EAGLE-2: EAGLE's head, and a tree that grows where the head is sure."""

from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.nets.find import load_head
from draftwood.drafters.nets.run import feature_drafter
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.recipes import eagle
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(title="EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", arxiv="2406.16858")


def build(
    target: Model, *, weights: OfDrafter[str] = "auto", depth: Size = 3, beam: Count = 1, nodes: Size = 3
) -> Recipe:
    """`nodes`: drafted tokens that the target checks in one pass."""
    return Recipe(
        drafter=feature_drafter(load_head(weights, target, "eagle", "eagle2"), target),
        policy=BestFirst(beam=beam),
        verifier=Match(),
        controller=Fixed(depth=depth, nodes=nodes),
    )


training = eagle.training
