"""KOALA: the heads of EAGLE or Medusa with several layers instead of one, and an adversarial term in their training."""

from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.unrolling.adversarial_plan import deeper_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import feature_drafter, heads_drafter, levels
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.sizing.choose_size import Asked, tree_size
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="KOALA: Enhancing Speculative Decoding for LLM via Multi-Layer Draft Heads with Adversarial Learning",
    arxiv="2408.08146",
    claim="0.24x-0.41x more than the heads of one layer, which is 10.6 %-14.1 % faster",
    needs="weights",
)


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    flavour: Literal["eagle", "medusa"] = "eagle",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    beam: Count | None = None,
    nodes: Size | None = None,
) -> Recipe:
    """`flavour`: which head has grown deeper. `nodes`: drafted tokens that the target checks in one pass. `depth`, `beam`,
    `nodes` that are not given are chosen for this target and machine; `size=paper` takes the published ones."""
    head = load_head(weights, target, f"deep_{flavour}", "koala")
    # Until a head of this kind ships, the choice begins with what the head of one layer accepts.
    more: dict[str, Any] = {"published": (6, 10, 60), "profile": "eagle2"}
    if flavour == "eagle":
        drafter = feature_drafter(head, target)
    else:
        drafter, most = heads_drafter(head, target), levels(head, None)
        depth = None if depth is None else levels(head, depth)
        more = {"published": (most, 10, 63), "profile": "medusa", "deepest": most}
    chosen = tree_size("koala", target, drafter, weights, Asked(depth, beam, nodes, size), **more)
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
    flavour: Literal["eagle", "medusa"] = "eagle",
    layers: int = 2,
    adversarial: float = 0.05,
    judged: float = 0.25,
    unroll: int | None = None,
    stages: int | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> TrainPlan:
    """`layers`: of the head. `adversarial`: weight of the discriminator's term, 0 for none; `judged`: share of the positions
    it sees. `unroll`: steps of eagle's roll-out (3); `stages`: heads of medusa (4). `rate`: by default that of the head of
    one layer."""
    asked = {name: x for name, x in {"unroll": unroll, "stages": stages, "rate": rate}.items() if x is not None}
    more: dict[str, Any] = {"adversarial": adversarial, "judged": judged, "seed": seed}
    return deeper_plan(target, keep, flavour, asked, layers=layers, **more)
