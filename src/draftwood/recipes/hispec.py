"""HiSpec: the target's first layers draft, a few more of them review, and all of them verify what is left."""

from typing import Annotated, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.layers.tentative import entries
from draftwood.drafters.learners.plans import exits_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import reviewed_drafter
from draftwood.option_parsing import Count, OfDrafter, OnlyWith, Size
from draftwood.sizing.choose_route import what_pays
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="HiSpec: Hierarchical Speculative Decoding for LLMs",
    arxiv="2510.01336",
    claim="1.28x mean, 2.01x best over single-layer",
)
PUBLISHED = 4  # tentative tokens
MOST = 4  # where only what pays is drafted


def build(
    target: Runner,
    *,
    exits: OfDrafter[Literal["nets", "shared"]] = "nets",
    weights: Annotated[OfDrafter[str], OnlyWith("exits", "nets")] = "auto",
    draft_layers: OfDrafter[Count | None] = None,
    review_layers: OfDrafter[Count | None] = None,
    draft: OfDrafter[Count] = 2,
    size: Literal["auto", "paper"] = "auto",
    tentative: Size | None = None,
    verifier: Annotated[Literal["match", "rejection"], OnlyWith("size", "paper")] = "match",
) -> Recipe:
    """`exits=shared`: the target's own norm and head behind both exits, for targets that were trained for it. `draft`:
    tokens of one review. `size=paper`: every round drafts, until `tentative` tokens are there to be verified; by default
    as many as pay."""
    head = None if exits == "shared" else load_head(weights, target, "exits", "hispec")
    drafter, name = reviewed_drafter(target, head, draft_layers, review_layers, draft)
    layers = f"{drafter.draft} of {target.info.num_layers} layers and are reviewed after {drafter.review}"
    told = f"drafts leave after {layers}"
    if size == "paper":
        exact, most = verifier == "rejection", PUBLISHED if tentative is None else tentative
        return Recipe(
            drafter=drafter,
            policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
            verifier=Rejection() if exact else Match(),
            controller=Fixed(most, entries(most, draft, target.info.device)),
            notes=(f"{told}, in every round, whether it pays or not; size=auto drafts where it pays",),
        )
    return what_pays(target, drafter, name, MOST if tentative is None else tentative).recipe(told)


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    draft_layers: int | None = None,
    review_layers: int | None = None,
    rate: float = 4e-3,
    muon: bool = True,
    share: float = 1.0,
    seed: int = 0,
) -> TrainPlan:
    """Both nets in one run. `draft_layers`, `review_layers`: after how many layers they leave the target, by default an
    eighth and a quarter; `share`: of the positions that teach in a step; `muon`: the optimiser of matrices."""
    places = {"draft_layers": draft_layers, "review_layers": review_layers}
    return exits_plan(target, keep, **places, rate=rate, seed=seed, share=share, muon=muon)
