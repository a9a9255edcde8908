"""FR-Spec: the drafter's head keeps the rows of tokens that are frequent in plain text. No training."""

from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.frequent import count_texts, most_frequent
from draftwood.recipes.vocab_trim import trimmed

PAPER = Paper(
    title="FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative Sampling",
    arxiv="2502.14856",
)


def build(
    target: Model,
    *,
    texts: tuple[str, ...] = (),
    inner: str = "speculative_sampling",
    rows: int = 8192,
    draft: str | None = None,
    weights: str | None = None,
    depth: int | None = None,
) -> Recipe:
    """`texts`: files of plain text whose tokens are counted; `draft`, `weights` and `depth` are options of `inner`."""
    keep = most_frequent(count_texts(texts, target), rows, target)
    return trimmed(inner, target, keep, draft=draft, weights=weights, depth=depth)
