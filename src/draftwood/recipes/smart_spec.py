"""SmartSpec: the draft length with the highest expected goodput for the whole batch, none where none pays."""

from typing import Literal

from draftwood import recipes
from draftwood.controllers.budget import Budget
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.goodput import Goodput
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine.followed import Followed
from draftwood.drafters.combine.route import refuse_route
from draftwood.drafters.retrieval.retrieved import Retriever
from draftwood.option_parsing import OfDrafter, Size
from draftwood.sizing.choose_route import expected_of_chains, pass_costs
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

PAPER = Paper(
    title="Optimizing Speculative Decoding for Serving Large Language Models Using Goodput",
    arxiv="2406.14066",
    claim="up to 3.2x lower latency than no speculation, across request rates",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    depth: Size = 6,
    verifier: Literal["match", "rejection"] = "match",
) -> Recipe:
    """`inner`: the recipe whose drafter guesses. `depth`: tokens of the longest draft. Copies from a text (inner=
    prompt_lookup) are drafted in full, and how many of them are verified is chosen afterwards."""
    drafter = recipes.drafter(inner, target)
    refuse_route(drafter, inner)
    if isinstance(drafter, Retriever):
        controller = Budget(Priced(depth, depth, pass_costs(target)), extra=0, paying=True)
        return Recipe(drafter=drafter, policy=BestFirst(1, 1), verifier=Match(), controller=controller)
    expected = expected_of_chains(target, drafter, recipes.lender(inner), depth)
    return Recipe(
        drafter=Followed(drafter, at_first=expected.pays),
        policy=Chain(Draw.GIVEN if verifier == "match" else Draw.IID),
        verifier=Match() if verifier == "match" else Rejection(),
        controller=Goodput(depth, times=expected.times, first=expected.right),
        notes=(expected.as_note(),),
    )
