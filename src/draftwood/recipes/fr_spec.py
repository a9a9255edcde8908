"""FR-Spec: the drafter's head keeps the rows of tokens that are frequent in plain text. No training."""

from draftwood.core.protocols import Model
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.frequent import count_texts, most_frequent
from draftwood.option_parsing import Count, OfDrafter
from draftwood.recipes.vocab_trim import trimmed

PAPER = Paper(
    title="FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative Sampling",
    arxiv="2502.14856",
)


def build(
    target: Model,
    *,
    texts: OfDrafter[tuple[str, ...]] = (),
    inner: OfDrafter[str] = "speculative_sampling",
    rows: OfDrafter[Count] = 8192,
) -> Recipe:
    """`texts`: files of plain text whose tokens are counted. `inner`: whose drafter is trimmed: eagle3:nodes=8."""
    return trimmed(inner, target, most_frequent(count_texts(texts, target), rows, target))
