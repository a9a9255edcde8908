"""Hydra: Medusa's heads, each also reading the tokens drafted before it."""

from typing import Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import parallel_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import heads_drafter, levels
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.sizing.choose_size import Asked, tree_size
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding",
    arxiv="2402.05109",
    needs="weights",
    claim="2.5x-2.7x, 1.3x over Medusa",
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
    """`nodes`: drafted tokens that the target checks in one pass. `depth`: the number of heads at most. Those of `depth`,
    `beam` and `nodes` that are not given are chosen for this target and machine; `size=paper` takes the published ones."""
    head = load_head(weights, target, "hydra", "hydra")
    drafter = heads_drafter(head, target)
    asked = Asked(None if depth is None else levels(head, depth), beam, nodes, size)
    # No heads of this kind ship; those of the MLP speculator read drafted tokens, too.
    chosen = tree_size(
        "hydra",
        target,
        drafter,
        weights,
        asked,
        published=(levels(head, None), 10, 63),
        deepest=levels(head, None),
        profile="mlp_speculator",
    )
    return Recipe(
        drafter=drafter,
        policy=BestFirst(chosen.beam),
        verifier=Match(),
        controller=chosen.controller,
        notes=chosen.notes,
    )


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    stages: int = 4,
    rate: float = 1e-3,
    muon: bool = False,
    share: float = 0.5,
    seed: int = 0,
) -> TrainPlan:
    """`stages`: heads."""
    return parallel_plan("hydra", target, keep, stages=stages, rate=rate, muon=muon, seed=seed, share=share)
