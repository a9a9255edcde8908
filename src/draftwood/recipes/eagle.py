"""EAGLE: a one-layer head extrapolates the target's features; a fixed tree of draws, judged by rejection."""

from typing import Any

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import FINAL
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import feature_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.option_parsing import Count, Factor, OfDrafter
from draftwood.trees.static import Static
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty",
    arxiv="2401.15077",
    claim="about 3x on 13B models",
)


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    widths: tuple[Count, ...] = (4, 2, 1, 1, 1),
    draft_temperature: Factor = 1.0,
) -> Recipe:
    """`widths`: children of every node, level by level. `draft_temperature`: times that of the request, of draws."""
    policy = Static(widths, draw=Draw.DISTINCT)
    return Recipe(
        drafter=feature_drafter(load_head(weights, target, "eagle", "eagle"), target),
        policy=policy,
        verifier=Rejection(),
        controller=Fixed(depth=len(policy.widths), nodes=policy.num_nodes),
        draft_temperature=draft_temperature,
    )


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    unroll: int = 3,
    regress: float = 0.2,
    noise: float = 0.0,
    rate: float = 4e-3,
    muon: bool = True,
    seed: int = 0,
) -> TrainPlan:
    """The same weights serve eagle and eagle2. `noise`: on the features, as a share of their size; `muon`: the optimiser of
    matrices (AdamW wants a quarter of the rate)."""
    more: dict[str, Any] = {"noise": noise, "muon": muon}
    return feature_plan(
        "eagle", target, keep, taps=(FINAL,), unroll=unroll, regress=regress, rate=rate, seed=seed, **more
    )
