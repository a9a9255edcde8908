"""What a part stores for every token follows the target's entries: through trees, preemption and shared prefixes."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from draftwood.cache.block_cache import BlockCache
from draftwood.cache.dense import DenseCache
from draftwood.cache.device import DeviceCache
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import CacheSpec, ForwardOutput, Needs
from draftwood.core.protocols import Runner
from draftwood.core.recipe import Recipe
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import Outcome
from draftwood.engine.engine import Engine
from draftwood.errors import CompositionError, EngineError, OptionError
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.models.backends.int8_weights import from_tensors
from draftwood.recipes import autoregressive
from draftwood.runners.cpu import CpuRunner
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.exact import Free
from draftwood.testing.host_reads import as_if_on_a_device
from draftwood.testing.parts.oracle_drafter import NoisyOracle
from draftwood.testing.parts.table_model import TableModel, random_probs
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder, tiny_runner
from draftwood.testing.parts.token_pool import TOKENS, PoolDrafter, PoolRule
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.best_first import BestFirst
from draftwood.verifiers.match import Match
from native_levels import BEST, kept_weights, opened

COMMON = [4, 9, 2, 7, 7, 1, 3, 8, 5, 6, 2, 2, 9]
PROMPTS = [[*COMMON, 1], [*COMMON, 1, 5, 3], [3, 3], [*COMMON[:9], 2, 6], [5], [*COMMON, 1, 5, 4]]
GREEDY = SamplingParams(max_tokens=30, temperature=0.0, seed=3)
LIKE_KEYS = CacheSpec("tokens", CONFIG.num_kv_heads, CONFIG.head_dim, torch.float64)  # joins the model's own stores

TARGETS: dict[str, Callable[[], Runner]] = {
    "table": lambda: CpuRunner(TableModel(CONFIG.vocab_size, random_probs(CONFIG.vocab_size, 1))),
    "decoder": tiny_runner,
    "device": lambda: CudaRunner(tiny_decoder()),
    "blocks": lambda: CpuRunner(NativeDecoder(CONFIG, from_tensors(CONFIG, kept_weights(CONFIG)), opened(BEST))),
}


def where(name: str) -> Any:
    return as_if_on_a_device() if name == "device" else nullcontext()


def recipe(target: Runner, *, lag: int | None, spec: CacheSpec, seen: Counter[str]) -> Recipe:
    plain = serve(make_engine(target, autoregressive.build(target)), PROMPTS, GREEDY)
    oracle = NoisyOracle({tuple(r.prompt): tuple(r.output) for r in plain}, target.info.vocab_size)

    def watch(rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        for taken, deep in zip(outcome.accepted, outcome.deepest, strict=True):
            if deep:
                seen["all" if taken == deep else "some" if taken else "none"] += 1

    return Recipe(
        drafter=PoolDrafter(oracle, lag, spec),
        policy=BestFirst(),
        verifier=PoolRule(Match(), spec) if lag is None else Match(),
        controller=Fixed(depth=3, nodes=6),
        watch=(watch,),
    )


def run(
    name: str, *, lag: int | None = None, spec: CacheSpec = TOKENS, max_cache_tokens: int | None = None
) -> tuple[list[Request], Counter[str]]:
    """Six requests, some with a common beginning, which arrive while others decode or after they have left."""
    seen = Counter[str]()
    with where(name):
        target = TARGETS[name]()
        made = recipe(target, lag=lag, spec=spec, seen=seen)
        engine = make_engine(target, made, slots=3, chunk=5, capacity=64, max_cache_tokens=max_cache_tokens)
        runner: Any = engine.runner
        real = runner.admit

        def admit(slot: int, tokens: Sequence[int], *rest: Any, **more: Any) -> int:
            size = real(slot, tokens, *rest, **more)
            seen["shared"] += size
            return size

        runner.admit = admit
        found = serve(engine, PROMPTS, GREEDY, arrive={3: 6, 5: 12})
    return found, seen


@pytest.mark.parametrize("lag", [None, 0, 3], ids=["staged", "committed", "late"])
@pytest.mark.parametrize("spec", [TOKENS, LIKE_KEYS], ids=["own shape", "like keys"])
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.slow
def test_a_pool_holds_the_text_after_every_round(name: str, spec: CacheSpec, lag: int | None) -> None:
    roomy, seen = run(name, lag=lag, spec=spec)
    tight, pressed = run(name, lag=lag, spec=spec, max_cache_tokens=70)
    for requests, counts in ((roomy, seen), (tight, pressed)):
        assert [r.stats.disabled for r in requests] == [None] * len(PROMPTS)
        assert all(len(r.output) == GREEDY.max_tokens for r in requests)
        print(name, spec, lag, dict(counts), "preempted:", sum(r.stats.preempted for r in requests))
        assert min(counts[kind] for kind in ("all", "some", "none")) > 0
        assert counts["shared"] > len(COMMON)
    assert [r.output for r in tight] == [r.output for r in roomy]
    assert sum(r.stats.preempted for r in tight) > 0


def without_pools(monkeypatch: pytest.MonkeyPatch, kind: type[DenseCache], method: str) -> None:
    """A cache whose method leaves the pools as they are."""
    real = getattr(kind, method)

    def changed(self: Any, *args: Any) -> Any:
        before = {name: self.pool(name).clone() for name in self._pools}
        found = real(self, *args)
        for name, pool in before.items():
            self.pool(name)[:, :, : pool.shape[2]] = pool
        return found

    monkeypatch.setattr(kind, method, changed)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("name", "kind", "method"),
    [
        ("decoder", DenseCache, "commit"),
        ("device", DeviceCache, "keep"),
        ("decoder", DenseCache, "admit"),
        ("device", DeviceCache, "admit"),
        ("blocks", BlockCache, "_pull"),
        ("blocks", BlockCache, "_start_from"),
    ],
)
def test_a_commit_or_a_shared_prefix_that_leaves_pools_out_is_found(
    name: str, kind: type[DenseCache], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pools(monkeypatch, kind, method)
    found, _ = run(name)
    assert any("the pool of slot" in str(r.stats.disabled) for r in found)


def test_a_prefix_that_is_shared_beyond_what_is_filled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DenseCache, "filled", lambda self, slot, name, upto: None)
    monkeypatch.setattr(DenseCache, "_usable", lambda self, slot, want, most=None: _agreed(self.text(slot), want))
    found, _ = run("decoder", lag=6, max_cache_tokens=70)  # a preempted request continues a text with unfilled entries
    assert any("the pool of slot" in str(r.stats.disabled) for r in found)


def test_also_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockCache, "filled", lambda self, slot, name, upto: None)
    real = BlockCache.admit

    def admit(self: BlockCache, slot: int, *rest: Any, **more: Any) -> int:
        size = real(self, slot, *rest, **more)
        self._slots[slot].filled = {}  # as if there were no pool to wait for
        return size

    monkeypatch.setattr(BlockCache, "admit", admit)
    found, _ = run("blocks", lag=6, max_cache_tokens=70)
    assert any("the pool of slot" in str(r.stats.disabled) for r in found)


def _agreed(have: list[int], want: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))


def test_the_least_filled_pool_bounds_a_shared_prefix() -> None:
    pools = TOKENS, replace(TOKENS, name="others")
    cache = DenseCache((CacheSpec("ids", 1, 1),), slots=2, capacity=16, pools=pools)
    cache.admit(0, [1, 2, 3, 4, 5])
    cache._slots[0].text = [1, 2, 3, 4, 5]
    cache.filled(0, "tokens", 5)
    assert cache.admit(1, [1, 2, 3, 4, 5, 6]) == 0, "the other pool was never filled"
    cache.free([1])
    cache.filled(0, "others", 3)
    assert cache.admit(1, [1, 2, 3, 4, 5, 6]) == 3


def test_a_runner_that_was_opened_without_the_pools_is_refused() -> None:
    target = tiny_runner()
    made = recipe(target, lag=0, spec=TOKENS, seen=Counter())
    with pytest.raises(EngineError, match=r"no pool 'tokens'\nhint: runner.open"):
        Engine(target.open(1, 64), made, cost_model=Free())


def test_pools_of_one_name_are_one_pool_or_refused() -> None:
    target = tiny_runner()
    made = recipe(target, lag=None, spec=TOKENS, seen=Counter())
    assert made.needs.pools == (TOKENS,)
    other = replace(made, verifier=PoolRule(Match(), replace(TOKENS, width=2)))
    with pytest.raises(CompositionError, match="different things in the pools"):
        other.check(target)
    with pytest.raises(OptionError, match="name of another store"):
        target.open(1, 64, pools=(replace(TOKENS, name="k0"),))


def test_needs_are_joined() -> None:
    other = replace(TOKENS, name="others")
    assert (Needs(pools=(TOKENS,)) | Needs(pools=(other, TOKENS))).pools == (TOKENS, other)
