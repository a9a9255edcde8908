"""Predicted outputs: draft the answer that the caller expects, as far as the real one follows it. No model."""

from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.prediction import Prediction
from draftwood.option_parsing import Size
from draftwood.sizing.choose_route import pass_costs
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Predicted outputs: the caller hands in the text it expects, and it drafts (an API option of OpenAI)"
)

MOST = 32


def build(target: Runner, *, depth: Size = 24, nodes: Size | None = None) -> Recipe:
    """The text comes with each request: SamplingParams(prediction=...). `nodes`: always up to so many; by default as many
    as pay, at most 32."""
    found = Prediction(target.info.tokenizer)
    return Recipe(
        drafter=Route((found,)) if nodes is None else found,
        policy=Chain(draw=Draw.GIVEN),  # cuts the given tree to its budget by score
        verifier=Match(),
        controller=Priced(depth, MOST, pass_costs(target)) if nodes is None else Fixed(depth=depth, nodes=nodes),
    )
