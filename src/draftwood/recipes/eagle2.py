"""EAGLE-2: EAGLE's head, and a tree that grows where the head is sure."""

from typing import Literal

from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.recipes import eagle
from draftwood.sizing.choose_size import Asked, tree_size
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
    arxiv="2406.16858",
    claim="3.05x-4.26x",
)


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    beam: Count | None = None,
    nodes: Size | None = None,
) -> Recipe:
    """`nodes`: drafted tokens that the target checks in one pass. `depth`, `beam`, `nodes` that are not given are chosen for
    this target and machine; `size=paper` takes the published ones."""
    drafter = feature_drafter(load_head(weights, target, "eagle", "eagle2"), target)
    chosen = tree_size("eagle2", target, drafter, weights, Asked(depth, beam, nodes, size), published=(6, 10, 60))
    return Recipe(
        drafter=drafter,
        policy=BestFirst(chosen.beam),
        verifier=Match(),
        controller=chosen.controller,
        notes=chosen.notes,
    )


training = eagle.training
