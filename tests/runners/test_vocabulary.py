"""A draft model with a few tokens more or fewer drafts for a target, and never changes what is emitted."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwood.controllers.fixed import Fixed
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Recipe
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.draft_model import DraftModel
from draftwood.errors import CompositionError
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.vocabulary import FittedVocabulary, fitted
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.verifiers.rejection import Rejection

PROMPTS = [[5, 6, 7, 60], [1, 60, 59, 2, 58]]


def tokenizer(size: int, **changed: int) -> Any:
    words = {f"t{i}": i for i in range(size)}
    for word, index in changed.items():
        words = {each: i for each, i in words.items() if i != index} | {word: index}
    return SimpleNamespace(backend=SimpleNamespace(get_vocab=lambda: words), control_tokens=())


def runner(vocab_size: int, seed: int = 0, known: Any = None) -> CpuRunner:
    model = tiny_decoder(seed, config=replace(CONFIG, vocab_size=vocab_size))
    return CpuRunner(model, replace(model.info, tokenizer=known or tokenizer(vocab_size)))


def speculating(draft: Any, depth: int) -> Recipe:
    return Recipe(
        drafter=DraftModel(draft), policy=Chain(draw=Draw.IID), verifier=Rejection(), controller=Fixed(depth=depth)
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [55, 61, 70])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_that_of_plain_decoding(size: int, temperature: float):
    target = runner(61)
    draft = fitted(runner(size, seed=1), target, "small")
    assert draft.info.vocab_size == 61
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=4)
    recipe = speculating(draft, 3)
    got = serve(make_engine(target, recipe), PROMPTS, params)
    assert sum(r.stats.draft_tokens for r in got) and all(r.stats.disabled is None for r in got)
    if temperature == 0:
        plain = speculating(draft, 0)
        assert [r.output for r in got] == [r.output for r in serve(make_engine(target, plain), PROMPTS, params)]


def test_rows_of_tokens_that_only_one_has():
    model = tiny_decoder(1, config=replace(CONFIG, vocab_size=55))
    wide, hidden = FittedVocabulary(model, 61), torch.randn(3, 32, dtype=torch.float64)
    logits = wide.head(hidden)
    assert torch.equal(logits[:, :55], model.head(hidden)) and bool((logits[:, 55:] == -torch.inf).all())
    ids = torch.tensor([3, 58, 54])
    torch.testing.assert_close(wide.head(hidden, ids=ids), logits[:, ids])
    assert torch.equal(wide.embed(torch.tensor([3, 60])), model.embed(torch.tensor([3, 54])))
    torch.testing.assert_close(FittedVocabulary(model, 50).head(hidden), model.head(hidden)[:, :50])


def test_ids_that_mean_different_tokens_are_refused():
    other = runner(61, known=tokenizer(61, world=17))
    with pytest.raises(CompositionError, match=r"'small' has another vocabulary: token 17 is 'world' there and 't17'"):
        fitted(other, runner(61), "small")
    with pytest.raises(CompositionError, match="token 3 is"):
        fitted(runner(58, known=tokenizer(58, x=3)), runner(61), "small")


def test_far_sizes_and_unknown_tokens_are_refused():
    with pytest.raises(CompositionError, match="vocabulary of 2000 tokens, the target one of 61"):
        fitted(runner(2000), runner(61), "small")
    with pytest.raises(CompositionError, match="vocabulary of 58 tokens, the target one of 61"):
        fitted(tiny_runner(1, config=replace(CONFIG, vocab_size=58)), tiny_runner(0), "small")
