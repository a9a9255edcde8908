"""Kangaroo: the target's first layers and a small attention net draft, the remaining layers verify."""

from typing import Annotated, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.stopping.confidence import Confident
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import exit_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import exit_drafter
from draftwood.option_parsing import OfDrafter, OnlyWith, Share, Size
from draftwood.sizing.choose_route import what_pays
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting",
    arxiv="2404.18911",
    claim="1.68x with 67 M extra parameters",
)
PUBLISHED = 6  # tokens of the longest draft
MOST = 4  # where only what pays is drafted


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    threshold: Annotated[Share, OnlyWith("size", "paper")] = 0.6,
    verifier: Annotated[Literal["match", "rejection"], OnlyWith("size", "paper")] = "match",
) -> Recipe:
    """`size=paper`: every round drafts, up to `depth` tokens, until one has less than `threshold`; by default as many as
    pay."""
    head = load_head(weights, target, "exit", "kangaroo")
    drafter = exit_drafter(head, target)
    told = f"drafts leave after {drafter.layers} of {target.info.num_layers} layers"
    if size == "paper":
        exact = verifier == "rejection"
        return Recipe(
            drafter=drafter,
            policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
            verifier=Rejection() if exact else Match(),
            controller=Confident(PUBLISHED if depth is None else depth, threshold=threshold),
            notes=(f"{told}, in every round, whether it pays or not; size=auto drafts where it pays",),
        )
    return what_pays(target, drafter, f"exit {head.digest}", MOST if depth is None else depth).recipe(told)


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    layers: int | None = None,
    rate: float = 4e-3,
    muon: bool = True,
    share: float = 1.0,
    seed: int = 0,
) -> TrainPlan:
    """`layers`: after how many layers the draft leaves the target, by default an eighth of them; `share`: of the positions
    that teach in a step; `muon`: the optimiser of matrices (AdamW wants a quarter of the rate)."""
    return exit_plan("exit", target, keep, layers=layers, rate=rate, seed=seed, share=share, muon=muon)
