"""EESD: the target's first layers and one trained layer draft; Thompson sampling decides when to verify."""

from typing import Annotated, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.stopping.thompson import BetaThompson, CalibratedThompson
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import exit_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import exit_drafter
from draftwood.option_parsing import OfDrafter, OnlyWith, Size
from draftwood.sizing.choose_route import what_pays
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Speculative Decoding via Early-exiting for Faster LLM Inference with Thompson Sampling Control Mechanism",
    arxiv="2406.03853",
    claim="above prior self-speculation on 13B and 70B",
)
PUBLISHED = 8  # tokens of the longest draft
MOST = 4  # where only what pays is drafted


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    stop: Annotated[Literal["beta", "calibrated"], OnlyWith("size", "paper")] = "beta",
    verifier: Annotated[Literal["match", "rejection"], OnlyWith("size", "paper")] = "match",
) -> Recipe:
    """`size=paper`: every round drafts, up to `depth` tokens; after each one a coin decides whether to go on, of the
    acceptance measured so far (`stop=beta`) or of the token's own probability, corrected by what was accepted
    (`stop=calibrated`). By default as many as pay."""
    head = load_head(weights, target, "exit_layer", "eesd")
    drafter = exit_drafter(head, target)
    told = f"drafts leave after {drafter.layers} of {target.info.num_layers} layers"
    if size == "paper":
        exact = verifier == "rejection"
        most = PUBLISHED if depth is None else depth
        return Recipe(
            drafter=drafter,
            policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
            verifier=Rejection() if exact else Match(),
            controller=BetaThompson(most) if stop == "beta" else CalibratedThompson(most),
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
    return exit_plan("exit_layer", target, keep, layers=layers, rate=rate, seed=seed, share=share, muon=muon)
