"""MLP speculator: a small recurrent net over the last feature and the tokens drafted so far."""

from typing import Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import parallel_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import heads_drafter, levels
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.sizing.choose_size import Asked, tree_size
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Accelerating Production LLMs with Combined Token/Embedding Speculators",
    arxiv="2404.19124",
    claim="2-3x in production",
)


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    beam: Count | None = None,
    nodes: Size | None = None,
) -> Recipe:
    """`nodes`: drafted tokens that the target checks in one pass. `depth`: its trained steps at most. Those of `depth`,
    `beam` and `nodes` that are not given are chosen for this target and machine; `size=paper` takes the published ones.
    The paper expands 5, 4 and 3 children and keeps the 5 best paths; BestFirst is the general form of that search.
    """
    head = load_head(weights, target, "mlp", "mlp_speculator")
    drafter = heads_drafter(head, target)
    asked = Asked(None if depth is None else levels(head, depth), beam, nodes, size)
    chosen = tree_size(
        "mlp_speculator", target, drafter, weights, asked, published=(3, 5, 15), deepest=levels(head, None)
    )
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
    stages: int = 4,
    inner: int = 768,
    tied: bool = True,
    scale_input: bool = True,
    rate: float = 1e-3,
    muon: bool = False,
    share: float = 0.5,
    seed: int = 0,
) -> TrainPlan:
    """`stages`: steps. `tied`: one norm and one inner projection for all of them."""
    return parallel_plan(
        "mlp",
        target,
        keep,
        stages=stages,
        rate=rate,
        muon=muon,
        seed=seed,
        share=share,
        inner=inner,
        tied=tied,
        scale_input=scale_input,
    )
