"""Lookahead decoding: one pass verifies phrases and makes new ones for the positions ahead. The target alone, no draft."""

from typing import Annotated, Literal

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.phrases.lookahead import Lookahead
from draftwood.option_parsing import Range
from draftwood.sizing.choose_window import choose_window
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match

PAPER = Paper(
    title="Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
    arxiv="2402.02057",
    claim="1.5x to 2.3x",
)
PUBLISHED = 5, 7, 7  # ngram, window, guesses


def build(
    target: Runner,
    *,
    size: Literal["auto", "paper"] = "auto",
    ngram: Annotated[int, Range(2, 16)] | None = None,
    window: Annotated[int, Range(1, 32)] | None = None,
    guesses: Annotated[int, Range(1, 32)] | None = None,
    copy: bool = True,
) -> Recipe:
    """A size that is given, or `size=paper`, runs in every round; by default windows and phrases run where they pay.
    `copy`: phrases of the prompt are guesses too."""
    policy, rule = Chain(draw=Draw.GIVEN), Match()
    asked = ngram, window, guesses
    if size == "auto" and asked == (None, None, None):
        chosen = choose_window(target, copy)
        return Recipe(
            drafter=chosen.drafter, policy=policy, verifier=rule, controller=chosen.controller, notes=chosen.notes
        )
    sizes = (there if given is None else given for given, there in zip(asked, PUBLISHED, strict=True))
    fixed = Lookahead(*sizes, copy=copy)
    return Recipe(drafter=fixed, policy=policy, verifier=rule, controller=Fixed(fixed.depth, fixed.nodes))
