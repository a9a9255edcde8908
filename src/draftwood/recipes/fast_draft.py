"""FastDraft: a very small language model on the target's vocabulary drafts a chain."""

from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import language_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import language_drafter
from draftwood.option_parsing import Factor, OfDrafter, Size
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="FastDraft: How to Train Your Draft",
    arxiv="2411.11055",
    claim="3x memory-bound speed-up on code",
)


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    depth: Size = 2,
    verifier: Literal["rejection", "match"] = "rejection",
    draft_temperature: Factor = 1.0,
) -> Recipe:
    """`depth`: tokens drafted in a round. `draft_temperature`: times that of the request, of draws."""
    exact = verifier == "rejection"
    return Recipe(
        drafter=language_drafter(load_head(weights, target, "language", "fast_draft"), target),
        # Match ignores q, so its guesses may share the target's own uniforms and agree more often.
        policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
        verifier=Rejection() if exact else Match(),
        controller=Fixed(depth=depth),
        draft_temperature=draft_temperature,
    )


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    width: int = 320,
    layers: int = 3,
    heads: int = 5,
    inner: int = 864,
    pretrain: float = 0.2,
    rate: float = 2e-3,
    muon: bool = False,
    seed: int = 0,
) -> TrainPlan:
    """Any text first, in the share `pretrain` of the steps, then the target's own. Deeper is slower for the same size: depth
    costs latency, width does not."""
    sizes: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "inner": inner}
    return language_plan(target, keep, **sizes, rate=rate, muon=muon, seed=seed, pretrain=pretrain)
