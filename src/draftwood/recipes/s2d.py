"""S2D: a small language model with nested exits drafts; each token leaves at the first exit that is sure enough."""

from typing import Annotated, Literal

from jaxtyping import Int
from torch import Tensor

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import language_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import exits_of, nested_drafter
from draftwood.option_parsing import OfDrafter, OnlyWith, Share, Size
from draftwood.sizing.choose_route import what_pays
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="S2D: Sorted Speculative Decoding For More Efficient Deployment of Nested Large Language Models",
    arxiv="2407.01955",
    needs="weights",
    claim="1.55x on average, one draft model for several targets",
)
PUBLISHED, BEAM, NODES = 4, 10, 60  # levels of a draft; and of its tree
SURE = 0.5  # a token leaves at an exit that gives its best next one more than this


def build(
    target: Runner,
    *,
    weights: OfDrafter[str] = "auto",
    thresholds: OfDrafter[tuple[Share, ...] | None] = None,
    size: Literal["auto", "paper"] = "auto",
    depth: Size | None = None,
    shape: Annotated[Literal["chain", "tree"], OnlyWith("size", "paper")] = "chain",
    verifier: Annotated[Literal["match", "rejection"], OnlyWith("size", "paper")] = "match",
) -> Recipe:
    """`thresholds`: of each exit, the last one 0. `size=paper`: every round drafts `depth` tokens, or with `shape=tree` a
    best-first tree; by default as many tokens as pay."""
    head = load_head(weights, target, "nested", "s2d")
    exits = exits_of(head, thresholds, SURE)
    drafter, deep = nested_drafter(head, target, exits), PUBLISHED if depth is None else depth
    after, sure = (", ".join(f"{each:g}" for each in several) for several in (exits.layers, exits.thresholds))
    told = f"a model of {exits.layers[-1]} layers drafts, with exits after {after} (thresholds {sure})"
    if size == "auto":
        return what_pays(target, drafter, f"nested {head.digest} {sure}", deep).recipe(told)
    exact, tree = verifier == "rejection", shape == "tree"
    return Recipe(
        drafter=drafter,
        policy=BestFirst(BEAM) if tree else Chain(draw=Draw.IID if exact else Draw.GIVEN),
        verifier=Rejection() if exact else Match(),
        controller=Fixed(deep, NODES if tree else None),
        notes=(f"{told}, in every round, whether it pays or not; size=auto drafts where it pays",),
    )


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    width: int = 320,
    layers: int = 3,
    heads: int = 5,
    inner: int = 864,
    exits: tuple[int, ...] | None = None,
    pretrain: float = 0.2,
    rate: float = 2e-3,
    muon: bool = False,
    seed: int = 0,
) -> TrainPlan:
    """`exits`: after how many layers a token may leave, by default after each of them; all learn in every step. Sizes are
    those of a plain small model, whose weights it may start from (then `pretrain=0`)."""
    sizes = {"width": width, "layers": layers, "heads": heads, "inner": inner}
    after = exits or tuple(range(1, layers + 1))
    return language_plan(target, keep, **sizes, rate=rate, muon=muon, seed=seed, pretrain=pretrain, exits=after)
