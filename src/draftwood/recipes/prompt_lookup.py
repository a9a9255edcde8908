"""Prompt lookup: copy what followed the same few tokens earlier in the text. No model, no training."""

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Prompt Lookup Decoding (A. Saxena, 2023): n-gram drafting from the text itself",
    claim="2x-4x where the answer copies the prompt",
)


def build(
    target: Runner,
    *,
    depth: Size = 10,
    nodes: Size = 16,
    n_min: OfDrafter[Count] = 2,
    n_max: OfDrafter[Count] = 4,
    branches: OfDrafter[Count] = 4,
) -> Recipe:
    return Recipe(
        drafter=NGram(n_min=n_min, n_max=n_max, branches=branches),
        policy=Chain(draw=Draw.GIVEN),  # cuts the given tree to its budget by score
        verifier=Match(),
        controller=Fixed(depth=depth, nodes=nodes),
    )
