"""DynaSD: several candidates, and a small net that stops drafting when none of the newest ones is likely to be kept."""

from typing import Literal

from jaxtyping import Int
from torch import Tensor

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.stopping.learned_stop import LearnedStop
from draftwood.core.protocols import Drafter, Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import TrainPlan
from draftwood.drafters.learners.plans import decision_plan
from draftwood.drafters.nets.files.find import load_head
from draftwood.drafters.nets.make_drafter import judge_of
from draftwood.drafters.target_roots import TargetRoots
from draftwood.errors import OptionError
from draftwood.option_parsing import Count, OfDrafter, Share
from draftwood.trees.static import Static
from draftwood.verifiers.longest_run import LongestRun
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.traversal import Traversal

PAPER = Paper(
    title="Improving Multi-candidate Speculative Decoding",
    arxiv="2409.10644",
    lossy_with="roots=target",
    claim="+75 % speed over MCSD",
)
NONE = "none"


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    weights: str = "auto",
    width: Count = 2,
    depth: Count = 5,
    threshold: Share = 0.4,
    roots: Literal["draft", "target"] = "draft",
    verifier: Literal["rejection", "traversal"] = "rejection",
) -> Recipe:
    """`weights`: the net that decides, or none; `width`: chains below the root; `roots=target` is LOSSY: the first
    candidates are the target's own, and the chain that gets furthest wins."""
    if roots == "target" and verifier != "rejection":
        raise OptionError(
            f"roots=target has a rule of its own, {verifier!r} would have no effect\nhint: leave out verifier"
        )
    if weights == NONE and threshold != 0.4:
        raise OptionError(f"threshold {threshold!r} has no effect without a net\nhint: leave out one of the two")
    drafter: Drafter = recipes.drafter(inner, target)
    policy = Static((width, *(1,) * (depth - 1)))
    size = depth, policy.num_nodes
    judge = (
        None if weights == NONE else judge_of(load_head(weights, target, "decision", "dynamic_mcsd"), drafter, inner)
    )
    controller = Fixed(*size) if judge is None else LearnedStop(*size, judge, threshold)
    if roots == "target":
        return Recipe(drafter=TargetRoots(drafter), policy=policy, verifier=LongestRun(), controller=controller)
    rule = Rejection() if verifier == "rejection" else Traversal()
    return Recipe(drafter=drafter, policy=policy, verifier=rule, controller=controller)


def training(
    target: Runner,
    keep: Int[Tensor, "W"],
    *,
    inner: str = "fast_draft",
    wide: int | None = None,
    share: float = 0.25,
    drawn: bool = False,
    rate: float = 1e-3,
    seed: int = 0,
) -> TrainPlan:
    """The net for the drafter of `inner`; `wide`: its first inner layer, the second is half as wide; `drawn`: labels of
    single draws, as published."""
    drafter = recipes.drafter(inner, target)
    return decision_plan(target, drafter, wide=wide, rate=rate, seed=seed, share=share, drawn=drawn, inner=inner)
