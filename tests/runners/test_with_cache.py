"""The slots of an engine are those of its runner's cache, and every commit names the tokens of its entries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import recipes
from draftwood.cache.dense import DenseCache
from draftwood.core.forward import FINAL, CacheSpec
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import EngineError, OutOfBlocks
from draftwood.runners.with_cache import WithCache
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve
from draftwood.train.loop.teacher import read_features

ASKED: dict[str, Callable[[WithCache], Any]] = {
    "prefer": lambda runner: runner.prefer([1, 2], [0]),
    "admit": lambda runner: runner.admit(0, [1, 2]),
    "length": lambda runner: runner.length(0),
    "reserve": lambda runner: runner.reserve([0], [1]),
    "commit": lambda runner: runner.commit([0], [[]], [[]]),
    "free": lambda runner: runner.free([0]),
    "check_integrity": lambda runner: runner.check_integrity(),
    "spare": lambda runner: runner.spare,
    "capacity": lambda runner: runner.capacity,
    "max_cache_tokens": lambda runner: runner.max_cache_tokens,
}


def small_cache() -> DenseCache:
    return DenseCache([CacheSpec("k", 1, 1, torch.float32)], slots=2, capacity=8, max_cache_tokens=12)


@pytest.mark.parametrize("asked", ASKED)
def test_weights_alone_have_no_cache_and_say_how_to_get_one(asked: str) -> None:
    with pytest.raises(EngineError, match=r"WithCache has no cache\nhint: runner\.open\(slots, capacity\)"):
        ASKED[asked](WithCache(None))
    ASKED[asked](WithCache(small_cache()))


def test_what_is_asked_of_a_runner_is_asked_of_its_cache() -> None:
    runner = WithCache(cache := small_cache())
    assert (runner.capacity, runner.max_cache_tokens, runner.spare) == (8, 12, 12)
    assert runner.admit(1, [3, 4, 5]) == 0 == cache.length(1)
    runner.reserve([1], [5])
    assert runner.spare == cache.spare == 7
    with pytest.raises(OutOfBlocks):
        runner.reserve([1], [9])
    with pytest.raises(EngineError, match="admitted twice"):
        runner.admit(1, [3])
    runner.free([1])
    assert runner.spare == 12 and runner.admit(1, [3]) == 0
    runner.check_integrity()


# --- tokens of commits


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Of every commit and slot: the tokens that were named, and those whose entries the cache keeps."""
    found: list[tuple[list[int], list[int]]] = []
    real = WithCache.commit

    def commit(self: WithCache, slots: Any, entries: Any, tokens: Any) -> None:
        before = [self.length(slot) for slot in slots]
        real(self, slots, entries, tokens)
        for slot, size, named in zip(slots, before, tokens, strict=True):
            found.append((list(named), self.cache.text(slot)[size:]))

    monkeypatch.setattr(WithCache, "commit", commit)
    return found


RECIPES = ["autoregressive", "prompt_lookup", "speculative_sampling:draft=first:3", "mcsd", "eagle2", "eagle3"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.slow
def test_every_commit_names_the_tokens_of_its_entries(
    name: str, temperature: float, tmp_path: Path, told: list[Any]
) -> None:
    """Of prompts in chunks, accepted paths and what a drafter keeps of its own, also after a preemption."""
    target, options = tiny_runner(1), dict[str, Any]()
    if name.startswith("eagle"):
        head = random_head("eagle" if name == "eagle2" else name, target)
        options = {"weights": str(write_head(tmp_path / "head.safetensors", head)), "depth": 3, "beam": 2, "nodes": 6}
    if name == "mcsd":
        options = {"widths": (2, 2), "inner": "speculative_sampling:draft=first:3"}
    recipe = recipes.build(name, target, **options)
    engine = make_engine(target, recipe, slots=3, max_cache_tokens=60, chunk=7)
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=16) for i in range(4)]
    done = serve(engine, [[1, 2, 3] * 8, [4], [5, 6] * 4, [1, 2, 3] * 5], params, arrive={3: 4})
    assert all(r.stats.disabled is None and r.finish_reason == "length" for r in done)
    assert sum(r.stats.preempted for r in done) > 0, "the cache is meant to be too small"
    assert sum(len(kept) for _, kept in told) > 60
    assert [pair for pair in told if pair[0] != pair[1]] == []


def test_a_teacher_names_the_tokens_of_its_commits(told: list[Any]) -> None:
    ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
    read_features(tiny_runner(), ids, torch.arange(5) < torch.tensor([[5], [3]]), frozenset({FINAL}))
    assert told == [([3, 1, 4, 1, 5],) * 2, ([9, 2, 6],) * 2]


def test_wrong_tokens_are_found(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: the tokens of the chain without those of the accepted path."""
    from draftwood.engine import step

    real = step._kept

    def shorter(chains: Any, report: Any) -> Any:
        return real(chains, report)[0], [chain.tokens for chain in chains]

    monkeypatch.setattr(step, "_kept", shorter)
    target = tiny_runner(1)
    recipe = recipes.build("speculative_sampling:draft=first:4", target)
    serve(make_engine(target, recipe), [[1, 2, 3]], SamplingParams(max_tokens=12))
    assert any(named != kept for named, kept in told)


def test_a_text_that_was_forgotten_is_prefilled_again() -> None:
    runner = tiny_runner(1).open(2, 64)
    engine = make_engine(tiny_runner(1), recipes.build("autoregressive", tiny_runner(1)), slots=2)
    first = serve(engine, [[1, 2, 3, 4]], SamplingParams(max_tokens=4))
    again = serve(engine, [[1, 2, 3, 4]], SamplingParams(max_tokens=4))
    assert again[0].stats.cached_tokens > 0, "the twin: a text that is still there is used"
    engine.runner.forget()
    fresh = serve(engine, [[1, 2, 3, 4]], SamplingParams(max_tokens=4))
    assert fresh[0].stats.cached_tokens == 0 and fresh[0].output == again[0].output == first[0].output
    assert runner.admit(0, [5, 6]) == 0
    runner.forget()
    runner.check_integrity()
