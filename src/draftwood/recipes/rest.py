"""REST: draft what followed the same tokens in a datastore of your texts. No model, no training."""

from pathlib import Path
from typing import Annotated

from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.datastore import Datastore, open_store
from draftwood.option_parsing import Count, OfDrafter, Range, Size
from draftwood.sizing.choose_route import pass_costs
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="REST: Retrieval-Based Speculative Decoding",
    arxiv="2311.08252",
    needs="store",
    claim="1.62x-2.36x",
)


def build(
    target: Runner,
    *,
    store: OfDrafter[Path | None] = None,
    depth: Size = 10,
    nodes: Size | None = None,
    min_span: OfDrafter[Count] = 2,
    max_span: OfDrafter[Count] = 16,
    occurrences: OfDrafter[Annotated[int, Range(1, 1_000_000)]] = 5000,
) -> Recipe:
    """`store`: a file that `draftwood datastore build` wrote. `nodes`: always so many; by default as many as pay, at most
    the published 64."""
    found = Datastore(open_store(store, target), min_span, max_span, occurrences)
    return Recipe(
        drafter=Route((found,)) if nodes is None else found,
        policy=Chain(draw=Draw.GIVEN),  # cuts the given tree to its budget by score
        verifier=Match(),  # one target sample per node, whatever the number of paths through it
        controller=Priced(depth, 64, pass_costs(target)) if nodes is None else Fixed(depth=depth, nodes=nodes),
    )
