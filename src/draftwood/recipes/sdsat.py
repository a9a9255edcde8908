"""SDSAT: trained probes ride behind a token through the target, and what comes out of them is the next draft."""

from typing import Annotated, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import probes_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import levels, probes_model
from draftwood.drafters.on_features.probes import TrainedProbes
from draftwood.option_parsing import Count, OfDrafter, OnlyWith
from draftwood.sizing.choose_probes import choose_probes
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="SDSAT: Accelerating LLM Inference through Speculative Decoding with Semantic Adaptive Tokens",
    arxiv="2403.18647",
    claim="3.0x (7B), 3.5x (13B) on code",
)


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Count | None = None,
    nodes: Annotated[Count | None, OnlyWith("size", "paper")] = None,
    layout: OfDrafter[Annotated[Literal["alternating", "every"], OnlyWith("size", "paper")]] = "alternating",
) -> Recipe:
    """`size=paper`: rounds with probes and rounds with a draft alternate, whether that pays or not; `layout=every` puts
    probes behind every drafted token instead, so that every round drafts. More `nodes` than levels are a tree. By default
    what is expected to be fastest here, which may be plain decoding."""
    head = load_head(weights, target, "probes", "sdsat")
    model, deep = probes_model(head, target), levels(head, depth)
    if size == "auto":
        chosen = choose_probes(target, model, f"probes {head.digest}", deep)
        note = f"{chosen.note}; size=paper drafts in every second round"
        return Recipe(
            drafter=chosen.drafter,
            policy=Chain(Draw.GIVEN),
            verifier=Match(),
            controller=chosen.controller,
            notes=(note,),
        )
    drafter = TrainedProbes(model, deep, nodes, layout == "every")
    return Recipe(
        drafter=drafter,
        policy=Chain(Draw.GIVEN) if drafter.drafted == deep else BestFirst(),
        verifier=Match(),
        controller=Fixed(drafter.levels, drafter.size),
        notes=(f"{deep} probes, whether they pay or not; size=auto drafts where it pays",),
    )


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    probes: int = 3,
    inner: int | None = None,
    vectors: bool = True,
    rate: float = 1e-3,
    share: float = 0.2,
    seed: int = 0,
) -> TrainPlan:
    """The target stays as it is. `probes`: of a branch; `inner`: width of their adapter, by default a quarter of the
    target's; `share`: of the positions that get a branch in a step; `vectors=no`: the adapter alone learns, faster."""
    return probes_plan(target, keep, probes=probes, inner=inner, vectors=vectors, rate=rate, share=share, seed=seed)
