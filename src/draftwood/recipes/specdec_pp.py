"""SpecDec++: a chain ends where a small net on the draft's hidden states expects one of its tokens to be rejected."""

from typing import Literal

from jaxtyping import Int
from torch import Tensor

from draftwood import recipes
from draftwood.controllers.stopping.rejection_risk import RejectionRisk
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.lengths.length_plans import acceptance_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import acceptance_of
from draftwood.option_parsing import OfDrafter, Share, Size
from draftwood.sizing.choose_route import risk_worth_taking, what_pays
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths",
    arxiv="2405.19715",
    claim="2.04x-2.26x, +7 to +11 %",
)
FIXED = 5  # tokens of the longest fixed chain that is asked whether drafts pay at all


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "fast_draft",
    weights: str = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size = 20,
    least: Size = 2,
    threshold: Share | None = None,
    verifier: Literal["rejection", "match"] = "rejection",
) -> Recipe:
    """Drafts of `least` to `depth` tokens. `threshold`: of the chance that one of them is rejected; by default from times
    that are measured here, and then without the weight that the net's loss has for rejection. `size=paper`: drafts in every
    round, whether they pay here or not."""
    head = load_head(weights, target, "acceptance", "specdec_pp")
    drafter = recipes.drafter(inner, target)
    judge = acceptance_of(head, drafter, inner, unweighted=threshold is None)
    risk = risk_worth_taking(target, drafter, inner, FIXED) if threshold is None else threshold
    exact = verifier == "rejection"
    told = f"a net ends a draft of {inner} where the risk of a rejection exceeds {risk:.2f}"
    own = Recipe(
        drafter=drafter,
        policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
        verifier=Rejection() if exact else Match(),
        controller=RejectionRisk(depth, judge, risk, least),
        notes=(f"{told}, whether drafts pay or not; size=auto decodes plainly where they do not",),
    )
    return own if size == "paper" else what_pays(target, drafter, inner, FIXED).instead(told, own)


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    inner: str = "fast_draft",
    blocks: int = 3,
    tied: bool = False,
    mixed: float = 0.15,
    weight: float = 6.0,
    share: float = 0.25,
    rate: float = 1e-3,
    seed: int = 0,
) -> TrainPlan:
    """The net for the drafter of `inner`; `tied`: all `blocks` are one, as in the release; `mixed`: share of the answers'
    own tokens among the draws; `weight`: of rejection in the loss; `share`: of the positions that teach in a step."""
    drafter = recipes.drafter(inner, target)
    loss = {"mixed": mixed, "weight": weight, "share": share}
    return acceptance_plan(target, drafter, blocks=blocks, tied=tied, **loss, rate=rate, seed=seed, inner=inner)
