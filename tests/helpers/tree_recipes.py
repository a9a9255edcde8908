"""Recipes that put another recipe's drafter under a tree of their own, run whole on a tiny target."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from draftwood import recipes
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve

TARGET = tiny_runner(2)
PROMPTS = [[1, 2, 3], [4], [5, 6]]
WHOLE = f"speculative_sampling:draft=first:{TARGET.info.num_layers}"  # a draft that is the target
HALF = f"speculative_sampling:draft=first:{TARGET.info.num_layers - 1}"
HEADS = {
    "eagle3": "eagle3",
    "medusa": "medusa",
    "hydra": "hydra",
}  # a cache of features, one product, stages that read tokens


def served(name: str, *, temperature: float = 0.0, tokens: int = 24, **options: Any) -> list[Request]:
    """What a recipe writes after a few prompts, together in a batch; its drafter must never be disabled."""
    params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=3)
    done = serve(make_engine(TARGET, recipes.build(name, TARGET, **options)), PROMPTS, params)
    assert all(r.stats.disabled is None for r in done), [r.stats.disabled for r in done]
    return done


def same_as_plain(name: str, **options: Any) -> int:
    """Greedy text is that of plain decoding; how many tokens were drafted on the way."""
    got = served(name, **options)
    assert [r.output for r in got] == plain_texts()
    return sum(r.stats.draft_tokens for r in got)


@cache
def plain_texts() -> list[list[int]]:
    """Once: every recipe is compared with the same."""
    return [r.output for r in served("autoregressive")]


def ways_and_heads(ways: list[dict[str, Any]]) -> list[Any]:
    """Every way with every head. Fast tests take each way once and each head at least once, slow ones the other pairs."""
    return [
        pytest.param(way, head, id=f"{way}-{head}", marks=() if i % len(HEADS) == j else pytest.mark.slow)
        for i, way in enumerate(ways)
        for j, head in enumerate(HEADS)
    ]


def with_head(inner: str, folder: Path) -> str:
    """A recipe with a head of random weights."""
    return f"{inner}:weights={write_head(folder / 'head.safetensors', random_head(HEADS[inner], TARGET))}"
