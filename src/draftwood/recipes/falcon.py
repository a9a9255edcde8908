"""Falcon: a net on the target's features guesses several levels of a tree in one pass, block after block."""

from typing import Annotated, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import semi_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import semi_drafter
from draftwood.option_parsing import Count, OfDrafter, OnlyWith, Size
from draftwood.sizing.choose_route import what_pays
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting",
    arxiv="2412.12639",
    claim="2.91x-3.51x",
)
PASSES = 4  # of a round, as published
MOST = 4  # tokens of a chain, where only what pays is drafted


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    beam: Annotated[Count, OnlyWith("size", "paper")] = 20,
    nodes: Annotated[Size, OnlyWith("size", "paper")] = 60,
) -> Recipe:
    """`size=paper`: every round drafts a tree of `nodes` tokens and `depth` levels, by default those of four passes, with
    the `beam` best tokens of each place; by default chains, as long as pays."""
    head = load_head(weights, target, "semi", "falcon")
    drafter, block = semi_drafter(head, target), head.config.stages
    told = f"each draft pass guesses {block} levels"
    if size == "paper":
        return Recipe(
            drafter=drafter,
            policy=BestFirst(beam),
            verifier=Match(),
            controller=Fixed(depth=PASSES * block if depth is None else depth, nodes=nodes),
            notes=(f"{told}, in every round, whether it pays or not; size=auto drafts where it pays",),
        )
    return what_pays(target, drafter, f"semi {head.digest}", MOST if depth is None else depth).recipe(told)


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    block: int = 2,
    inner: int | None = None,
    noise: float = 0.1,
    glance: float = 0.4,
    rate: float = 2e-3,
    muon: bool = True,
    seed: int = 0,
) -> TrainPlan:
    """`block`: levels of one pass; `inner`: width of the MLP, by default the target's; `noise`: at most, on every number of
    a feature; `glance`: share of the wrong guesses that the net is shown at first; `muon`: the optimiser of matrices (AdamW
    wants a quarter of the rate)."""
    steps = {"noise": noise, "glance": glance, "rate": rate, "muon": muon, "seed": seed}
    return semi_plan(target, keep, block=block, inner=inner, **steps)
