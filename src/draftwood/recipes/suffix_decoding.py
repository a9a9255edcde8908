"""SuffixDecoding: copy what most often followed the last tokens, in this text and in earlier answers. No model."""

from typing import Annotated, Literal

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.suffix import Suffix
from draftwood.option_parsing import OfDrafter, Range, Share, Size
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications",
    arxiv="2411.04975",
)


def build(
    target: Runner,
    *,
    depth: OfDrafter[Annotated[int, Range(2, 256)]] = 24,
    nodes: Size = 16,
    mode: OfDrafter[Literal["path", "tree"]] = "tree",
    factor: OfDrafter[Annotated[float, Range(0)]] = 2.0,
    offset: OfDrafter[float] = 0.0,
    p_min: OfDrafter[Share] = 0.1,
    share: OfDrafter[bool] = True,
) -> Recipe:
    return Recipe(
        drafter=Suffix(depth=depth, mode=mode, factor=factor, offset=offset, p_min=p_min, share=share),
        policy=Chain(draw=Draw.GIVEN),  # cuts the given tree to its budget by score
        verifier=Match(),
        controller=Fixed(depth=min(depth - 1, nodes), nodes=nodes),
    )
