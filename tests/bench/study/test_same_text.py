"""On the embedded model's int8 backend every drafter writes plain decoding's text, bit for bit."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.bench.study.backend_error import TURNS
from draftwood.bench.study.same_text import Setting, compare
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.stores.build import Piece, build_store
from draftwood.drafters.retrieval.stores.dense.build import build_dense
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.train.data.hidden_states import final_states

COUNT, TOKENS = 20, 20
RECIPES = (
    "prompt_lookup", "suffix_decoding:nodes=8", "rest:nodes=8:store={texts}", "dresd:nodes=8:store={dense}",
    "prediction:nodes=8", "lookahead:ngram=3:window=3:guesses=3", "ouroboros:length=3:phrase=2:phrases=2",
    "cascade_drafting:first=3:then=4", "superposed_decoding:depth=3:nodes=6", "rasd:nodes=6:retrieved=6:store={texts}",
    "rasd:store={texts}", "eagle3:depth=3:nodes=6", "auto",
)  # fmt: skip


@dataclass(frozen=True)
class Predicted(Setting):
    """With a prediction for each request."""

    predictions: tuple[tuple[int, ...], ...] = ()

    def of(self, index: int) -> SamplingParams:
        return replace(self.params, seed=index, prediction=self.predictions[index])


def masked(tokens: Any) -> torch.Tensor:
    """A fifth of all tokens is forbidden, after every token another one."""
    return torch.arange(49_152) % 5 != len(tokens) % 5


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "greedy, penalties and grammar": {"grammar": masked, "repetition_penalty": 1.1, "presence_penalty": 0.2},
    "sampled, penalties and grammar": {"temperature": 1.0, "grammar": masked, "frequency_penalty": 0.2},
}


def spoiled(ids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token + 1 if i % 6 == 5 else token for i, token in enumerate(ids))


def setting(loaded: Loaded, folder: Path, options: dict[str, Any]) -> Predicted:
    """The prompts, with predictions that are wrong in places, and stores of such texts."""
    params = SamplingParams(max_tokens=TOKENS, **options)
    with LLM(loaded, "autoregressive", max_num_seqs=8) as llm:
        asked = [*TURNS, *(f"{turn} Answer in one sentence." for turn in TURNS)] * 2
        prompts = tuple(tuple(llm.chat_prompt(turn)) for turn in asked[:COUNT])
        each = [replace(params, seed=i) for i in range(COUNT)]
        answers = [spoiled(result.token_ids) for result in llm.generate(prompts, each)]
    texts = [Piece(np.array([*prompt, *answer])) for prompt, answer in zip(prompts, answers, strict=True)]
    tokenizer = loaded.tokenizer
    named = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint}
    build_store(folder / "texts", texts, **named)
    build_dense(folder / "dense", texts, final_states(runner_of(loaded)), loaded.info)
    return Predicted(prompts, params, 8, loaded.info.near_ties, tuple(answers))


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_every_drafter_writes_plain_decodings_text_in_batches_of_8(way: str, tmp_path: Path) -> None:
    """A ragged batch with arrivals, departures and preemption, on 20 prompts; all kinds of rounds occur."""
    loaded = load("smollm2")
    if not loaded.info.batch_invariant:
        pytest.skip(f"{loaded.info.backend} is not batch-invariant")
    chosen = setting(loaded, tmp_path, WAYS[way])
    names = [name.format(texts=tmp_path / "texts", dense=tmp_path / "dense") for name in RECIPES]
    counts = [0, 0, 0]
    for found in compare(loaded, names, chosen):
        print(f"{way}: {found.name.partition(':')[0]}: {found.identical} of {found.answers}, rounds {found.rounds}")
        assert found.good and not found.why and found.identical == found.answers == COUNT, found
        counts = [a + b for a, b in zip(counts, found.rounds, strict=True)]
        priced = found.name == "auto" or found.name.startswith("rasd:store")  # they draft where that pays
        assert priced or sum(found.rounds) > 0, f"{found.name} drafts nothing"
    assert min(counts) >= 20, counts
