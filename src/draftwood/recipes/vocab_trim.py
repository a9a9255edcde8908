"""VocabTrim: the drafter's head keeps the rows of tokens that the target often writes. No training."""

from dataclasses import replace

from jaxtyping import Int
from torch import Tensor

from draftwood import recipes
from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.combine import VocabTrim
from draftwood.drafters.frequent import most_frequent, read_counts

PAPER = Paper(
    title="VOCABTRIM: Vocabulary Pruning for Efficient Speculative Decoding in LLMs",
    arxiv="2506.22694",
)


def build(
    target: Model,
    *,
    inner: str = "speculative_sampling",
    rows: int = 8192,
    counts: str = "auto",
    draft: str | None = None,
    depth: int | None = None,
) -> Recipe:
    """`inner`: the recipe whose drafter is trimmed; `draft` and `depth` are options of that recipe."""
    return trimmed(inner, target, most_frequent(read_counts(counts, target), rows, target), draft=draft, depth=depth)


def trimmed(inner: str, target: Model, keep: Int[Tensor, "W"], **options: object) -> Recipe:
    """A recipe by name whose drafter guesses among `keep` alone. Options left at None stay the recipe's own."""
    recipe = recipes.build(inner, target, **{key: value for key, value in options.items() if value is not None})
    return replace(recipe, drafter=VocabTrim(recipe.drafter, keep))
