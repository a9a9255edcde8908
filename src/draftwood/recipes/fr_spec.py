"""FR-Spec: the drafter's head keeps the rows of tokens that are frequent in plain text. No training."""

from typing import Annotated

from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.drafters.frequent import count_texts, most_frequent
from draftwood.option_parsing import OfDrafter, Range
from draftwood.recipes.vocab_trim import trimmed

PAPER = Paper(
    title="FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked Speculative Sampling",
    arxiv="2502.14856",
    needs="texts",
    claim="1.12x over EAGLE-2",
)


def build(
    target: Runner,
    *,
    texts: OfDrafter[tuple[str, ...]] = (),
    inner: OfDrafter[str] = "auto",
    vocab_size: OfDrafter[Annotated[int, Range(1)]] = 8192,
) -> Recipe:
    """`texts`: files of plain text whose tokens are counted. `vocab_size`: tokens that the drafter can draft. `inner`: the
    recipe whose drafter it is, with its options: eagle3:nodes=8."""
    return trimmed(inner, target, most_frequent(count_texts(texts, target), vocab_size, target))
