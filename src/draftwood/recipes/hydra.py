"""Hydra: Medusa's heads, each also reading the tokens drafted before it."""

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import parallel_plan
from draftwood.drafters.nets.find import load_head
from draftwood.drafters.nets.run import heads_drafter, levels
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding",
    arxiv="2402.05109",
)


def build(
    target: Model, *, weights: OfDrafter[str] = "auto", depth: Size | None = None, beam: Count = 4, nodes: Size = 8
) -> Recipe:
    """`nodes`: drafted tokens that the target checks in one pass. `depth`: at most, and by default, the number of heads."""
    head = load_head(weights, target, "hydra", "hydra")
    return Recipe(
        drafter=heads_drafter(head, target),
        policy=BestFirst(beam=beam),
        verifier=Match(),
        controller=Fixed(depth=levels(head, depth), nodes=nodes),
    )


def training(
    target: Model,
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
