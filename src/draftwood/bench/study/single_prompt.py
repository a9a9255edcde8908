"""One prompt at a time through an engine whose verifier records drafts. A prompt that could not be drafted is refused:
figures over the other prompts would not be comparable."""

from collections.abc import Sequence
from typing import Any

from draftwood.core.config import EngineConfig
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import OptionError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded

SPARE = 64  # cache entries of a slot beyond prompt and answer

Prompt = Sequence[int]


def need_prompts(prompts: Sequence[Prompt]) -> None:
    if not prompts:
        raise OptionError("no prompts\nhint: at least one question")


def engine(loaded: Loaded, recipe: Recipe, prompts: Sequence[Prompt], max_tokens: int, spare: int = SPARE) -> LLM:
    """A fresh engine with one slot, long enough for each prompt with its answer and `spare` entries for trees."""
    length = min(max(map(len, prompts)) + max_tokens + spare, loaded.info.max_positions)
    return LLM(loaded, recipe, config=EngineConfig(max_num_seqs=1, max_model_len=length, disable_slow_drafts=False))


def ask(llm: LLM, prompt: Prompt, number: int, *, seed: int = 0, **params: Any) -> None:
    """Answer the prompt with this number, from 0. Returns nothing: the recording verifier holds the results."""
    answer = llm.generate([list(prompt)], SamplingParams(seed=seed + number, **params))[0]
    if answer.stats.disabled or answer.error:
        raise OptionError(f"prompt {number + 1} could not be drafted: {answer.stats.disabled or answer.error}")
