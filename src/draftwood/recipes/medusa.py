"""Medusa: several heads on the last feature, each guessing one token further on, all at once."""

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
    title="Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
    arxiv="2401.10774",
)


def build(
    target: Model, *, weights: OfDrafter[str] = "auto", depth: Size | None = None, beam: Count = 4, nodes: Size = 8
) -> Recipe:
    """`nodes`: drafted tokens that the target checks in one pass. `depth`: at most, and by default, the number of heads."""
    head = load_head(weights, target, "medusa", "medusa")
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
    """Medusa-1: the target stays as it is. `stages`: heads."""
    return parallel_plan("medusa", target, keep, stages=stages, rate=rate, muon=muon, seed=seed, share=share)
