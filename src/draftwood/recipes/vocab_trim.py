"""VocabTrim: the drafter's head keeps the rows of tokens that the target often writes. They are counted, not learned."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from jaxtyping import Int
from torch import Tensor

from draftwood import recipes
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Paper, Recipe
from draftwood.core.train_plan import Build, Made, TrainPlan
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.drafters.frequent import count_written, counts_bytes, counts_name, most_frequent, read_counts
from draftwood.option_parsing import OfDrafter, Range

PAPER = Paper(
    title="VOCABTRIM: Vocabulary Pruning for Efficient Speculative Decoding in LLMs",
    arxiv="2506.22694",
    claim="+16 % memory-bound speed-up",
)


def build(
    target: Runner,
    *,
    inner: OfDrafter[str] = "auto",
    vocab_size: OfDrafter[Annotated[int, Range(1)]] = 8192,
    counts: OfDrafter[str] = "auto",
) -> Recipe:
    """`vocab_size`: tokens that the drafter can draft. `inner`: the recipe whose drafter it is, with its options:
    eagle3:nodes=8."""
    return trimmed(inner, target, most_frequent(read_counts(counts, target), vocab_size, target))


def training(target: Runner, keep: Int[Tensor, "W"]) -> TrainPlan:
    """No net: how often the target wrote each token, in a file for the option `counts`."""
    return TrainPlan((Build(partial(_count, target), name="count"),))


def _count(target: Runner, dialogues: Any) -> Made:
    total, name = count_written(dialogues, target.info.vocab_size), counts_name(target)
    figures = {"tokens": int(total.sum()), "distinct": int((total > 0).sum())}
    return Made({name: counts_bytes(total)}, {"counts": name}, figures)


def trimmed(inner: str, target: Runner, keep: Int[Tensor, "W"]) -> Recipe:
    """A recipe by name whose drafter guesses among `keep` alone. Without options it drafts a chain of 3: sizes that were
    chosen for a whole head do not fit a trimmed one."""
    name, words = recipes.parted(inner)
    chain = {} if words else {key: 3 for key in ("depth", "nodes") if key in recipes.options(name)}
    recipe = recipes.build(inner, target, **chain)
    return replace(recipe, drafter=VocabTrim(recipe.drafter, keep))
