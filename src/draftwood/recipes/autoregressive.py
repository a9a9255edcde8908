"""Plain decoding: the target writes one token per pass. Every other recipe must emit the same distribution."""

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.nothing import Nothing
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(title="Autoregressive decoding, one token per target pass")


def build(target: Runner) -> Recipe:
    return Recipe(drafter=Nothing(), policy=Chain(draw=Draw.GIVEN), verifier=Match(), controller=Fixed(depth=0))
