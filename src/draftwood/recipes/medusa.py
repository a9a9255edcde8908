"""Medusa: several heads on the last feature, each guessing one token further on, all at once."""

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
from draftwood.verifiers.typical import Typical

PAPER = Paper(
    title="Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
    arxiv="2401.10774",
    lossy_with="verifier=typical",
    claim="2.2x (Medusa-1), 2.3x-3.6x (Medusa-2)",
)


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    beam: Count | None = None,
    nodes: Size | None = None,
    verifier: Literal["match", "typical"] = "match",
) -> Recipe:
    """`nodes`: drafted tokens that the target checks in one pass. `depth`: the number of heads at most. Those of `depth`,
    `beam` and `nodes` that are not given are chosen for this target and machine; `size=paper` takes the published ones.
    `verifier=typical` is LOSSY: above temperature 0 it keeps what the target finds typical."""
    head = load_head(weights, target, "medusa", "medusa")
    drafter = heads_drafter(head, target)
    asked = Asked(None if depth is None else levels(head, depth), beam, nodes, size)
    chosen = tree_size(
        "medusa", target, drafter, weights, asked, published=(levels(head, None), 10, 63), deepest=levels(head, None)
    )
    return Recipe(
        drafter=drafter,
        policy=BestFirst(chosen.beam),
        verifier=Match() if verifier == "match" else Typical(),
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
    """Medusa-1: the target stays as it is. `stages`: heads."""
    return parallel_plan("medusa", target, keep, stages=stages, rate=rate, muon=muon, seed=seed, share=share)
