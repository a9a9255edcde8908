"""EAGLE-3: a head on features of several layers, trained on its own guesses."""

from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import feature_plan, middle_taps
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import feature_drafter
from draftwood.option_parsing import Count, Factor, OfDrafter, Size
from draftwood.sizing.choose_size import Asked, tree_size
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
    arxiv="2503.01840",
    claim="4.4x on Llama-3.1-8B, up to 6.5x",
)
BEST = 0.9  # times the request's temperature: there most draws of the head that ships are accepted


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    beam: Count | None = None,
    nodes: Size | None = None,
    verifier: Literal["match", "block"] = "match",
    draft_temperature: Factor | None = None,
) -> Recipe:
    """`nodes`: drafted tokens that the target checks in one pass. `depth`, `beam`, `nodes` that are not given are chosen for
    this target and machine; `size=paper` takes the published ones. `verifier`, above temperature 0: `match` keeps the best
    tokens of a tree, and a seed gives the text of plain decoding; `block` judges a chain of draws. `draft_temperature`:
    times that of the request, of draws; 0.9 for `block`."""
    drafter = feature_drafter(load_head(weights, target, "eagle3", "eagle3"), target)
    asked = Asked(depth, beam, nodes, size)
    drawn = verifier == "block"
    chosen = tree_size("eagle3", target, drafter, weights, asked, published=(7, 10, 60), drawn=drawn)
    tree = BestFirst(chosen.beam)
    return Recipe(
        drafter=drafter,
        policy=Chain() if drawn else tree,
        greedy_policy=tree if drawn else None,
        verifier=Block() if drawn else Match(),
        controller=chosen.controller,
        notes=chosen.notes,
        draft_temperature=draft_temperature or (BEST if drawn else 1.0),
    )


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    unroll: int = 4,
    noise: float = 0.0,
    rate: float = 4e-3,
    muon: bool = True,
    inner: int | None = None,
    taps: tuple[int, ...] = (),
    own_lm_head: bool = False,
    norm_features: bool = True,
    seed: int = 0,
) -> TrainPlan:
    """`taps`: layers whose features are fused, by default an early, a middle and a late one; `norm_features`: each normed
    first; `own_lm_head`: an LM head of its own instead of the target's; `noise`: on the features, as a share of their size;
    `inner`: width of the MLP, by default the target's; `muon`: the optimiser of matrices (AdamW: a quarter of the rate)."""
    more: dict[str, Any] = {"noise": noise, "muon": muon, "inner": inner, "norm_features": norm_features}
    more |= {"taps": tuple(taps) or middle_taps(target), "target_rows": not own_lm_head}
    return feature_plan("eagle3", target, keep, unroll=unroll, regress=0.0, rate=rate, seed=seed, **more)
