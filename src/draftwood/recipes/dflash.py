"""DFlash: a net that reads the target's features guesses a block of tokens in one pass; a tree of its likeliest paths."""

from typing import Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import block_plan, middle_taps
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import block_drafter, levels
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.sizing.choose_size import Asked, tree_size
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="DFlash: Block Diffusion for Flash Speculative Decoding",
    arxiv="2602.06036",
    claim="up to 6x on Qwen3-8B, 2.5x over EAGLE-3",
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
    """`nodes`: drafted tokens that the target checks in one pass. `depth`: the tokens of a block at most. Those of `depth`,
    `beam` and `nodes` that are not given are chosen for this target and machine; `size=paper` drafts one whole block, the
    likeliest token at each place. With more nodes than that the tree is DDTree's (arXiv 2604.12989)."""
    head = load_head(weights, target, "block", "dflash")
    drafter, most = block_drafter(head, target), levels(head, None)
    asked = Asked(None if depth is None else levels(head, depth), beam, nodes, size)
    # No net of this kind ships; heads that read no drafted token, either, are the nearest with a measured acceptance.
    chosen = tree_size(
        "dflash", target, drafter, weights, asked, published=(most, 1, most), deepest=most, profile="medusa"
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
    stages: int = 7,
    layers: int = 1,
    taps: tuple[int, ...] = (),
    inner: int | None = None,
    share: float = 0.5,
    decay: float = 0.8,
    rate: float = 4e-3,
    muon: bool = True,
    seed: int = 0,
) -> TrainPlan:
    """`stages`: tokens of a block behind its root; `layers`: of the net; `taps`: layers of the target whose features are
    fused, by default an early, a middle and a late one; `inner`: width of the MLPs, by default the target's; `share`: of the
    positions that begin a block in a step; `decay`: weight of each further token; `muon`: the optimiser of matrices (AdamW
    wants a quarter of the rate)."""
    sizes = {"stages": stages, "layers": layers, "inner": inner}
    steps = {"share": share, "decay": decay, "rate": rate, "muon": muon, "seed": seed}
    return block_plan(target, keep, taps=tuple(taps) or middle_taps(target), **sizes, **steps)
