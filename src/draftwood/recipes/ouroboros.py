"""Ouroboros: a small drafter's chain, continued by phrases that the target taught a pool in earlier rounds and requests."""

from typing import Annotated, Literal

from draftwood import recipes
from draftwood.controllers.costs.priced import Priced
from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.phrases.lengthened import Lengthened
from draftwood.option_parsing import OfDrafter, Range
from draftwood.sizing.choose_route import pass_costs
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Ouroboros: Generating Longer Drafts Phrase by Phrase for Faster Speculative Decoding",
    arxiv="2402.13720",
    claim="up to 3.9x; 2.8x over speculative decoding",
)
PUBLISHED, USUAL = (12, 6, 3), (3, 3, 2)  # length, phrase, phrases
LEAST = 0.3  # by default a chain ends where its drafter gives it less chance


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    size: Literal["auto", "paper"] = "auto",
    length: Annotated[int, Range(1, 64)] | None = None,
    phrase: Annotated[int, Range(1, 16)] | None = None,
    phrases: Annotated[int, Range(1, 16)] | None = None,
    copy: bool = True,
) -> Recipe:
    """`length`: tokens of the chain; `phrases` of `phrase` tokens follow it. A size that is given, or `size=paper`, is
    drafted in every round; by default chains end where they grow improbable, and phrases follow where they pay."""
    asked = length, phrase, phrases
    fixed = size == "paper" or asked != (None, None, None)
    usual = PUBLISHED if size == "paper" else USUAL
    tokens, each, count = (there if given is None else given for given, there in zip(asked, usual, strict=True))
    depth, nodes = tokens + each, tokens + each * count
    drafter = recipes.drafter(inner, target, frozenset({Draw.GIVEN}))
    return Recipe(
        drafter=Lengthened(drafter, tokens, each, count, 0.0 if fixed else LEAST, copy, priced=not fixed),
        policy=Chain(draw=Draw.GIVEN),
        verifier=Match(),
        controller=Fixed(depth, nodes) if fixed else Priced(depth, nodes, pass_costs(target)),
    )
