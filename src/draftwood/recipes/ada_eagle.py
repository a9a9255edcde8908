"""AdaEAGLE: a small net predicts before every round how many tokens a head on features should draft."""

from typing import Literal

from jaxtyping import Int
from torch import Tensor

from draftwood import recipes
from draftwood.controllers.stopping.predicted_length import PredictedLength
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.lengths.length_plans import length_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import length_of
from draftwood.option_parsing import OfDrafter, Share, Size
from draftwood.sizing.choose_route import what_pays
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="AdaEAGLE: Optimizing Speculative Decoding via Explicit Modeling of Adaptive Draft Structures",
    arxiv="2412.18910",
    claim="1.62x, no manual threshold",
)
FIXED = 5  # tokens of the longest fixed chain that is asked whether drafts pay at all


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "eagle3",
    weights: str = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    ddd: Share | None = None,
    verifier: Literal["match", "rejection"] = "match",
) -> Recipe:
    """`depth`: tokens of the longest draft, by default those the net was trained for. `ddd`: a draft that is longer than
    predicted goes on until the product of its probabilities is below this. `size=paper`: drafts in every round, whether
    they pay here or not."""
    head = load_head(weights, target, "length", "ada_eagle")
    drafter = recipes.drafter(inner, target)
    most, exact = head.config.stages if depth is None else depth, verifier == "rejection"
    told = f"a net predicts how many tokens {inner} drafts, at most {most}"
    own = Recipe(
        drafter=drafter,
        policy=Chain(draw=Draw.IID if exact else Draw.GIVEN),
        verifier=Rejection() if exact else Match(),
        controller=PredictedLength(most, length_of(head, target, inner), ddd),
        notes=(f"{told}, whether drafts pay or not; size=auto decodes plainly where they do not",),
    )
    return own if size == "paper" else what_pays(target, drafter, inner, FIXED).instead(told, own)


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    inner: str = "eagle3",
    most: int = 10,
    wide: int | None = None,
    blocks: int = 3,
    short: float = 3.0,
    share: float = 1.0,
    rate: float = 1e-3,
    seed: int = 0,
) -> TrainPlan:
    """The net for the drafter of `inner`, whose chains of `most` tokens give the labels; `wide`: its width, by default a
    third of the target's; `short`: how much worse a draft is that is a token too short than one that is too long; `share`:
    of the positions that teach in a step."""
    drafter = recipes.drafter(inner, target)
    loss = {"short": short, "share": share}
    return length_plan(target, drafter, most=most, wide=wide, blocks=blocks, **loss, rate=rate, seed=seed, inner=inner)
