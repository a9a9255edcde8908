"""GRIFFIN: a head with token-guided fusion and two outputs, trained at positions that its own drafts could reach."""

from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.unrolling.aligned_plan import aligned_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.sizing.choose_size import Asked, tree_size
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="GRIFFIN: Effective Token Alignment for Faster Speculative Decoding",
    arxiv="2502.11018",
    claim="7 % longer accepted drafts and 8 % faster than HASS, 18 % faster than EAGLE-2",
    needs="weights",
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
    drafter = feature_drafter(load_head(weights, target, "griffin", "griffin"), target)
    asked = Asked(depth, beam, nodes, size)
    # Until a head of this kind ships, the choice begins with what the head of the same tree accepts.
    chosen = tree_size("griffin", target, drafter, weights, asked, published=(6, 10, 60), profile="eagle2")
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
    stages: int = 3,
    first: int = 1,
    near: int = 3,
    regress: float = 1.0,
    soft: float = 0.1,
    top: float = 0.5,
    noise: float = 0.0,
    rate: float = 4e-3,
    muon: bool = True,
    seed: int = 0,
) -> TrainPlan:
    """Stage j, from `first` to `stages`, unrolls j passes. `near`: a token is predictable if it is among so many of the
    head's best ones. `regress`, `soft` and, from stage 2 on, `top` weigh the losses on features, on distributions and on
    their ten most probable tokens. `noise`: on the features, as a share of their size; `muon`: the optimiser of matrices
    (AdamW wants a quarter of the rate)."""
    weights: dict[str, Any] = {"regress": regress, "soft": soft, "top": top, "noise": noise}
    shape: dict[str, Any] = {"stages": stages, "first": first, "near": near, "seed": seed}
    return aligned_plan(target, keep, rate=rate, muon=muon, **shape, **weights)
