"""The native kernels read entries through a table of blocks, with the bits of entries that lie in one stretch."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from draftwood.cache.block_cache import BlockCache
from draftwood.cache.dense import DenseCache
from draftwood.core.forward import ForwardInput
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_native import NativeDecoder
from draftwood.testing.parts.tiny import CONFIG
from native_levels import BEST, EVERY_LEVEL, kept_weights, opened

CONFIGS = {
    "llama": CONFIG,
    "qwen3 1x80": replace(
        CONFIG, family="qwen3", num_heads=2, num_kv_heads=2, head_dim=80, qk_norm=True, hidden_size=64
    ),
    "mistral 3x64": replace(
        CONFIG, family="mistral", num_heads=3, num_kv_heads=1, head_dim=64, sliding_window=50, tie_embeddings=False
    ),
}
TAPS = frozenset(range(CONFIG.num_layers + 1))
SIZES = (1, 30, 1, 64, 7, 33, 1)  # of the chunks of a text


def model(name: str, level: str = BEST) -> NativeDecoder:
    config = CONFIGS[name]
    return NativeDecoder(config, int8_weights.from_tensors(config, kept_weights(config)), opened(level))


def in_blocks(made: NativeDecoder) -> BlockCache:
    """A cache whose free blocks stand in no order."""
    cache = BlockCache(made.cache_specs, slots=2, capacity=256)
    random.Random(3).shuffle(cache.blocks.free)
    return cache


def passes(made: NativeDecoder, cache: DenseCache, *, damaged: bool = False, reserved: bool = False) -> list[Tensor]:
    """What is computed for the chunks of two texts that run together, and for trees behind them."""
    draw = torch.Generator().manual_seed(1)
    for slot in range(2):
        cache.admit(slot, [])
    if reserved:
        cache.reserve([0, 1], [200, 200])
    found: list[Tensor] = []
    done = 0
    for size in SIZES:
        at = torch.arange(size)
        ids = torch.randint(0, 61, (2 * size,), generator=draw)
        slots, at2 = at.new_tensor([0] * size + [1] * size), torch.cat([at, at])
        x = ForwardInput(ids, slots, done + at2, at2, at2 - 1, torch.arange(2 * size))
        output = made.forward(x, cache, taps=TAPS)
        found += [output.logits, *output.features.values()]
        cache.commit([0, 1], [list(range(size))] * 2)
        done += size
    if damaged and isinstance(cache, BlockCache):
        row = cache.blocks.rows[1]
        row[0], row[1] = int(row[1]), int(row[0])
    parents = [-1, 0, 0, 1, 1, 2, 3, 6, *range(7, 40)]
    depth: list[int] = []
    for parent in parents:
        depth.append(0 if parent < 0 else depth[parent] + 1)
    at = torch.arange(len(parents))
    for slot in range(2):
        ids = torch.randint(0, 61, (len(parents),), generator=draw)
        x = ForwardInput(ids, torch.full_like(at, slot), done + torch.tensor(depth), at, torch.tensor(parents), at)
        output = made.forward(x, cache, taps=TAPS)
        found += [output.logits, *output.features.values()]
    cache.commit([0, 1], [[0, 1, 3, 6], [0, 2, 5]])
    for slot in range(2):
        end = cache.length(slot)
        found += [cache.store(spec.name)[slot, :, :end] for spec in made.cache_specs]
    return found


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("level", EVERY_LEVEL)
@pytest.mark.parametrize("name", CONFIGS)
def test_entries_in_blocks_give_the_bits_of_entries_in_one_stretch(name: str, level: str) -> None:
    made = model(name, level)
    right = passes(made, DenseCache(made.cache_specs, slots=2, capacity=256))
    assert same(right, passes(made, in_blocks(made)))
    straight = BlockCache(made.cache_specs, slots=2, capacity=256)
    assert same(right, passes(made, straight, reserved=True)), "blocks that stand one behind the other"
    assert straight.blocks.straight == [True, True]


def test_blocks_in_a_wrong_order_are_found() -> None:
    """The twin."""
    made = model("llama")
    right = passes(made, DenseCache(made.cache_specs, slots=2, capacity=256))
    assert not same(right, passes(made, in_blocks(made), damaged=True))
