"""TETRIS: drafted tokens of all requests compete for the places of one verification, the likeliest ones win."""

from typing import Literal

from draftwood import recipes
from draftwood.controllers.budget import Budget
from draftwood.controllers.fixed import Fixed
from draftwood.controllers.goodput import Goodput
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.followed import Followed
from draftwood.drafters.combine.route import refuse_route
from draftwood.option_parsing import Count, OfDrafter, Size
from draftwood.sizing.choose_route import expected_of_chains
from draftwood.trees.best_first import BestFirst
from draftwood.trees.ranked_chain import RankedChain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="TETRIS: Optimal Draft Token Selection for Batch Speculative Decoding",
    arxiv="2502.15197",
    claim="up to 5.25 % more throughput than the best baseline",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    nodes: Size | None = None,
    depth: Size = 6,
    extra: Size = 1,
    width: Count = 1,
    verifier: Literal["match", "rejection"] = "match",
) -> Recipe:
    """`nodes`: places per request, as published; by default the depth of the highest goodput, at most `depth`, and of its
    nodes those that pay. `extra`: levels that are drafted beyond. `width`: nodes of a level: with more than one a request's
    nodes are a chain with leaves beside it."""
    drafter = recipes.drafter(inner, target)
    refuse_route(drafter, inner)
    drawn = verifier == "rejection"
    sizes, drafts, notes = Fixed(nodes or 0), drafter, ()
    if nodes is None:
        expected = expected_of_chains(target, drafter, recipes.lender(inner), depth)
        sizes = Goodput(depth, times=expected.times, beyond=extra, first=expected.right)
        drafts, notes = Followed(drafter, at_first=expected.pays), (expected.as_note(),)
    return Recipe(
        drafter=drafts,
        policy=RankedChain(Draw.IID) if drawn else BestFirst(1, width),
        verifier=Rejection() if drawn else Match(),
        controller=Budget(sizes, extra, 1 if drawn else width, paying=nodes is None),
        notes=notes,
    )
