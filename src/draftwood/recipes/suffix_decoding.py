"""SuffixDecoding: copy what most often followed the last tokens, in this text and in earlier answers. No model."""

from typing import Annotated, Literal

from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.suffix import Suffix
from draftwood.option_parsing import OfDrafter, Range, Share, Size
from draftwood.sizing.choose_route import pass_costs
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications",
    arxiv="2411.04975",
    claim="up to 5.3x on agentic SQL generation",
)


MOST = 16


def build(
    target: Runner,
    *,
    depth: OfDrafter[Annotated[int, Range(2, 256)]] = 24,
    nodes: Size | None = None,
    mode: OfDrafter[Literal["path", "tree"]] = "tree",
    factor: OfDrafter[Annotated[float, Range(0)]] = 2.0,
    offset: OfDrafter[float] = 0.0,
    p_min: OfDrafter[Share] = 0.1,
    share: OfDrafter[bool] = True,
) -> Recipe:
    """`nodes`: always up to so many; by default as many as pay, at most 16."""
    most = MOST if nodes is None else nodes
    levels, found = min(depth - 1, most), Suffix(depth, mode, factor, offset, p_min, share)
    return Recipe(
        drafter=Route((found,)) if nodes is None else found,
        policy=Chain(draw=Draw.GIVEN),  # cuts the given tree to its budget by score
        verifier=Match(),
        controller=Priced(levels, most, pass_costs(target)) if nodes is None else Fixed(levels, nodes),
    )
