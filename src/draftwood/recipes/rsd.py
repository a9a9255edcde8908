"""RSD: siblings drawn without replacement, in a tree of fixed widths (c) or a stochastic beam (s), judged by rejection."""

from typing import Annotated, Literal

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import Count, Factor, OfDrafter, OnlyWith, Size
from draftwood.trees.static import Static
from draftwood.trees.stochastic_beam import StochasticBeam
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Recursive Speculative Decoding: Accelerating LLM Inference via Sampling Without Replacement",
    arxiv="2402.14160",
    claim="better at equal length and equal budget",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    method: Literal["c", "s"] = "s",
    widths: Annotated[tuple[Count, ...], OnlyWith("method", "c")] = (2, 1),
    beam: Annotated[Count, OnlyWith("method", "s")] = 2,
    depth: Annotated[Size, OnlyWith("method", "s")] = 2,
    draft_temperature: Factor = 1.0,
) -> Recipe:
    """`method`: c, a tree with `widths` children per node and level, or s, a beam of `beam` nodes over `depth` levels.
    `draft_temperature`: times that of the request, of draws."""
    if method == "c":
        policy = Static(widths)
        controller = Fixed(depth=len(widths), nodes=policy.num_nodes)
    else:
        policy, controller = StochasticBeam(beam), Fixed(depth=depth, nodes=beam * depth)
    drafter = recipes.drafter(inner, target)
    return Recipe(
        drafter=drafter,
        policy=policy,
        verifier=Rejection(),
        controller=controller,
        draft_temperature=draft_temperature,
    )
