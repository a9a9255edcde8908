"""RSD: siblings drawn without replacement, in a tree of fixed widths (c) or a stochastic beam (s), judged by rejection."""

from typing import Literal

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.errors import OptionError
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Recursive Speculative Decoding: Accelerating LLM Inference via Sampling Without Replacement",
    arxiv="2402.14160",
)


def build(
    target: Model,
    *,
    inner: str = "speculative_sampling",
    method: Literal["c", "s"] = "s",
    widths: tuple[int, ...] | None = None,
    beam: int | None = None,
    depth: int | None = None,
) -> Recipe:
    """`inner`: the recipe whose drafter is used, with its options. `widths` belong to c, `beam` and `depth` to s."""
    wrong = {"c": {"beam": beam, "depth": depth}, "s": {"widths": widths}}
    if method not in wrong:
        raise OptionError(f"method cannot be {method!r}\nhint: 'c', a tree of fixed widths, or 's', a stochastic beam")
    for name, value in wrong[method].items():
        if value is not None:
            other = "s" if method == "c" else "c"
            raise OptionError(f"rsd: method {method} has no {name}, yet it is {value!r}\nhint: method={other} has it")
    if method == "c":
        tree = Static((2, 2, 1) if widths is None else tuple(widths))
        policy, controller = tree, Fixed(depth=len(tree.widths), nodes=tree.num_nodes)
    else:
        beam, depth = 3 if beam is None else beam, 4 if depth is None else depth
        policy, controller = StochasticBeam(beam), Fixed(depth=depth, nodes=beam * depth)
    drafter = recipes.drafter(inner, target)
    return Recipe(drafter=drafter, policy=policy, verifier=Rejection(), controller=controller)
