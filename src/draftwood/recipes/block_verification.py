"""Block verification: a chain is judged as a whole, so a doubtful token may be kept for what follows it."""

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.option_parsing import Factor, OfDrafter, Size
from draftwood.trees.chain import Chain
from draftwood.verifiers.block import Block

PAPER = Paper(
    title="Block Verification Accelerates Speculative Decoding",
    arxiv="2403.10444",
    claim="2.45x against 2.30x token by token: +6.5 %",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    depth: Size = 3,
    draft_temperature: Factor = 1.0,
) -> Recipe:
    """`inner`: the recipe whose drafter guesses: fast_draft, speculative_sampling:draft=first:10.
    `draft_temperature`: times that of the request, of draws."""
    return Recipe(
        drafter=recipes.drafter(inner, target),
        policy=Chain(),
        verifier=Block(),
        controller=Fixed(depth=depth),
        draft_temperature=draft_temperature,
    )
