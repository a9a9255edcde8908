"""The default: copy from the text where it pays on this machine, decode plainly where it does not."""

from draftwood.controllers.heuristic import Heuristic
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.ngram import NGram
from draftwood.option_parsing import Count, Size
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(title="draftwood's default: n-gram drafting that pauses itself when it does not pay")


def build(target: Runner, *, depth: Count = 12, nodes: Size = 16) -> Recipe:
    return Recipe(
        drafter=NGram(),
        policy=Chain(draw=Draw.GIVEN),
        verifier=Match(),
        controller=Heuristic(most=depth, nodes=nodes),
    )
