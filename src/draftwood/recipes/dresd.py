"""DReSD: draft what followed where the target's hidden state was alike, in a datastore of hidden states. No draft model."""

from pathlib import Path
from typing import Annotated

from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.route import Route
from draftwood.drafters.retrieval.dense import Dense, open_dense
from draftwood.option_parsing import Count, OfDrafter, Range, Size
from draftwood.sizing.choose_route import pass_costs
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="DReSD: Dense Retrieval for Speculative Decoding",
    arxiv="2502.15572",
    needs="store",
    claim="+19 % speed over REST on average",
)


def build(
    target: Runner,
    *,
    store: OfDrafter[Path | None] = None,
    depth: Size = 9,
    nodes: Size | None = None,
    neighbours: OfDrafter[Annotated[int, Range(1, 10_000)]] = 50,
    drafts: OfDrafter[Count] = 10,
) -> Recipe:
    """`store`: a file that `draftwood datastore build --dense` wrote. `nodes`: always so many; by default as many as pay, at
    most 64."""
    found = Dense(open_dense(store, target), neighbours, drafts)
    return Recipe(
        drafter=Route((found,)) if nodes is None else found,
        policy=Chain(draw=Draw.GIVEN),  # cuts the given tree to its budget by score
        verifier=Match(),  # one target sample per node, whatever the number of continuations through it
        controller=Priced(depth, 64, pass_costs(target)) if nodes is None else Fixed(depth=depth, nodes=nodes),
    )
