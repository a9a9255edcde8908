"""Draft & Verify: the target drafts with some of its own sub-layers left out. No training, no other weights."""

from typing import Annotated, Literal

from draftwood.controllers.stopping.confidence import AdaptiveConfidence
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.layers.skip_set import read_skip_set
from draftwood.drafters.layers.skipped import SkippedLayers
from draftwood.option_parsing import OfDrafter, OnlyWith, Share, Size
from draftwood.sizing.choose_route import what_pays
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding",
    arxiv="2309.08168",
    claim="1.73x",
)
PUBLISHED = 8  # tokens of the longest draft
MOST = 4  # where only what pays is drafted


def build(
    target: Runner,
    *,
    skip: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    wanted: Annotated[Share, OnlyWith("size", "paper")] = 0.9,
    verifier: Annotated[Literal["match", "rejection"], OnlyWith("size", "paper")] = "match",
) -> Recipe:
    """`skip`: sub-layers to leave out, as in a3+m7, or a file of `draftwood search layers`; by default the set that ships
    for the target. `size=paper`: every round drafts, up to `depth` tokens, until one has less than an adaptive threshold,
    which aims at a share `wanted` of accepted tokens; by default as many as pay."""
    left_out = read_skip_set(skip, target)
    drafter = SkippedLayers(left_out)
    told = f"drafts leave out {len(left_out)} of {2 * target.info.num_layers} sub-layers"
    if size == "paper":
        exact = verifier == "rejection"
        return Recipe(
            drafter=drafter,
            policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
            verifier=Rejection() if exact else Match(),
            controller=AdaptiveConfidence(PUBLISHED if depth is None else depth, wanted=wanted),
            notes=(f"{told}, in every round, whether it pays or not; size=auto drafts where it pays",),
        )
    return what_pays(target, drafter, f"skipped {left_out}", MOST if depth is None else depth).recipe(told)
