"""The drafter of another recipe, over the tokens that were counted most."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood import recipes
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.combine.vocab_trim import VocabTrim
from draftwood.errors import CompositionError, OptionError
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve


@pytest.fixture
def counts(tmp_path: Path) -> str:
    np.save(tmp_path / "counts.npy", np.arange(61)[::-1])
    return str(tmp_path / "counts.npy")


def test_greedy_text_is_that_of_plain_decoding(counts: str) -> None:
    target, prompts, params = tiny_runner(2), [[1, 2, 3], [4]], SamplingParams(max_tokens=24)
    plain = serve(make_engine(target, recipes.build("autoregressive", target)), prompts, params)
    recipe = recipes.build(
        "vocab_trim", target, counts=counts, vocab_size=40, inner="speculative_sampling:draft=first:3:depth=3"
    )
    got = serve(make_engine(target, recipe), prompts, params)
    assert [r.output for r in got] == [r.output for r in plain]
    assert all(r.stats.disabled is None for r in got) and sum(r.stats.rounds_some + r.stats.rounds_all for r in got)


def test_the_inner_recipe_keeps_its_parts_and_gets_its_options(counts: str) -> None:
    target = tiny_runner()
    inner = "speculative_sampling:draft=first:1:depth=2"
    recipe: Any = recipes.build(f"vocab_trim:counts={counts}:vocab_size=5:inner={inner}", target)
    own: Any = recipes.build("speculative_sampling", target, draft="first:1", depth=2)
    assert isinstance(recipe.drafter, VocabTrim) and recipe.drafter.keep is not None
    assert recipe.drafter.keep.tolist() == [0, 1, 2, 3, 4]
    assert (recipe.policy, recipe.verifier, recipe.controller) == (own.policy, own.verifier, own.controller)


@pytest.mark.parametrize(
    ("inner", "kind"), [("eagle2", "eagle"), ("eagle3", "eagle3"), ("medusa", "medusa"), ("fast_draft", "language")]
)
def test_trained_heads_can_be_trimmed(counts: str, tmp_path: Path, inner: str, kind: str) -> None:
    target, prompts, params = tiny_runner(2), [[1, 2, 3], [4]], SamplingParams(max_tokens=24)
    plain = serve(make_engine(target, recipes.build("autoregressive", target)), prompts, params)
    size = "" if kind == "language" else ":depth=2:nodes=3"  # or plain decoding might be chosen as the fastest
    weights = str(write_head(tmp_path / "head.safetensors", random_head(kind, target)))
    recipe = recipes.build("vocab_trim", target, inner=f"{inner}:weights={weights}{size}", counts=counts, vocab_size=20)
    got = serve(make_engine(target, recipe), prompts, params)
    assert [r.output for r in got] == [r.output for r in plain]
    assert all(r.stats.disabled is None for r in got) and sum(r.stats.draft_tokens for r in got)


def test_what_has_no_head_or_no_such_option_is_refused(counts: str) -> None:
    with pytest.raises(CompositionError, match="NGram"):
        recipes.build("vocab_trim", tiny_runner(), counts=counts, inner="prompt_lookup")
    with pytest.raises(OptionError, match="prompt_lookup has no option 'draft'"):
        recipes.build("vocab_trim", tiny_runner(), counts=counts, inner="prompt_lookup:draft=first:1")
    with pytest.raises(OptionError, match="draftwood train vocab_trim"):
        recipes.build("vocab_trim", tiny_runner())
