"""Attention of many slots in one call equals that of each slot alone, whatever the other slots hold or held before."""

import random

import pytest
import torch
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import CacheSpec, ForwardInput, Segment
from draftwood.core.sampling.params import SamplingParams
from draftwood.models import stacked_attention as module
from draftwood.models.attention import torch_attention, visible_masks
from draftwood.models.stacked_attention import stacked, stacked_attention, stacking_pays
from draftwood.recipes import autoregressive
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.testing.runs import make_engine, serve

HEADS, KV, WIDTH = 6, 2, 16

Row = tuple[int, int, int, int]  # slot, position, staged row, staged row it follows


def cache_of(slots: int, capacity: int = 96, dtype: torch.dtype = torch.float64) -> DenseCache:
    specs = (CacheSpec("k0", KV, WIDTH, dtype), CacheSpec("v0", KV, WIDTH, dtype))
    return DenseCache(specs, slots=slots, capacity=capacity)


def tokens(columns: list[Row]) -> ForwardInput:
    slots, positions, rows, parents = torch.tensor(columns).T
    return ForwardInput(torch.zeros_like(slots), slots, positions, rows, parents, want=slots[:0])


def chain(slot: int, done: int, size: int) -> list[Row]:
    return [(slot, done + i, i, i - 1) for i in range(size)]


def tree(slot: int, done: int, size: int, rng: random.Random) -> list[Row]:
    """A random tree, and below its second half nodes that leave holes in the rows."""
    rows: list[Row] = [(slot, done, 0, -1)]
    for i in range(1, size):
        _, position, row, _ = rng.choice(rows)
        rows.append((slot, position + 1, i if i < size // 2 else i + 2, row))
    return rows


def noise(size: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(size, h, WIDTH, generator=draw, dtype=torch.float64).to(dtype) for h in (HEADS, KV, KV))
    return q, k, v


def run(
    cache: DenseCache, x: ForwardInput, new: tuple[Tensor, Tensor, Tensor], how: str, window: int | None = None
) -> Tensor:
    segments = cache.stage(x)
    keys, values = cache.store("k0"), cache.store("v0")
    if how == "one by one":
        masks = visible_masks(segments, x, keys.dtype, window)
        return torch_attention(*new, keys, values, x, segments, masks)
    cache.wipe()
    attention_mask = stacked(segments, x, keys.dtype, window)
    return stacked_attention(*new, cache.store("k0"), cache.store("v0"), attention_mask)


def fill(cache: DenseCache, lengths: dict[int, int], value: float | None = None) -> None:
    """Committed text of these lengths; of noise, or of one value."""
    for slot, length in lengths.items():
        cache.admit(slot, [])
        if length:
            _, k, v = noise(length, cache.store("k0").dtype, seed=slot)
            if value is not None:
                k, v = torch.full_like(k, value), torch.full_like(v, value)
            run(cache, tokens(chain(slot, 0, length)), (noise(length, k.dtype)[0], k, v), "one by one")
            cache.commit([slot], [list(range(length))])


def both(lengths: dict[int, int], x: ForwardInput, *, slots: int, window: int | None, dtype: torch.dtype) -> float:
    said: list[Tensor] = []
    stores: list[Tensor] = []
    for how in ("one by one", "together"):
        cache = cache_of(slots, 1100, dtype)
        fill(cache, lengths)
        said.append(run(cache, x, noise(x.size, dtype, seed=99), how, window))
        stores.append(torch.stack([cache.store("k0"), cache.store("v0")]))
    assert torch.equal(*stores)
    return float((said[0] - said[1]).abs().max())


@pytest.mark.parametrize("window", [None, 1, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_slots_together_say_what_each_says_alone(seed, dtype, window):
    rng = random.Random(seed)
    order = rng.sample(range(24), 18)  # slots out of order, some of them idle
    lengths = {slot: rng.choice([0, 1, 5, 63, 64, 65]) for slot in order}
    lengths[order[3]] = 1030  # a text far longer than the others
    columns: list[Row] = []
    for i, (slot, length) in enumerate(lengths.items()):
        columns += tree(slot, length, 9, rng) if i % 3 == 1 else chain(slot, length, rng.choice([1, 1, 1, 2, 3, 40]))
        columns += [(-1, 0, 0, -1)] * (i % 5 == 0)  # padding
    worst = both(lengths, tokens(columns), slots=24, window=window, dtype=dtype)
    assert worst < (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 3, 4], [3, 1, 0]], ids=str)
def test_plain_decoding_reads_the_slots_between_the_first_and_the_last(order):
    lengths = {slot: 3 + slot for slot in order}
    x = tokens([row for slot in order for row in chain(slot, lengths[slot], 1)])
    cache = cache_of(24)
    fill(cache, lengths)
    made = stacked(cache.stage(x), x, torch.float64, None)
    assert made.lines == slice(min(order), max(order) + 1)
    assert made.mask.shape == (max(order) - min(order) + 1, 1, 1, max(lengths.values()) + 1)
    assert both(lengths, x, slots=24, window=None, dtype=torch.float64) < 1e-12


@pytest.mark.parametrize("wiped", [True, False])
def test_nothing_a_slot_held_before_reaches_its_next_text_not_even_nan(wiped, monkeypatch):
    if not wiped:
        monkeypatch.setattr(DenseCache, "wipe", lambda self: None)
    cache = cache_of(3)
    fill(cache, {0: 50, 1: 60, 2: 2}, value=torch.nan)
    cache.free([0, 1, 2])
    fill(cache, {0: 4, 1: 7, 2: 40})
    x = tokens([*chain(0, 4, 1), *chain(1, 7, 1), *chain(2, 40, 1)])
    said = run(cache, x, noise(3, torch.float64), "together")
    assert bool(said.isfinite().all()) is wiped


def test_rows_a_round_threw_away_are_gone():
    new = noise(12, torch.float64)
    for bad in new[1:]:
        bad[[3, 4, 5, 9, 10, 11]] = torch.nan
    cache = cache_of(2)
    fill(cache, {0: 4, 1: 7})
    run(cache, tokens([*chain(0, 4, 6), *chain(1, 7, 6)]), new, "together")
    cache.commit([0, 1], [[0, 1, 2], [0]])
    said = run(cache, tokens([*chain(0, 7, 1), *chain(1, 8, 1)]), noise(2, torch.float64), "together")
    assert said.isfinite().all()


def test_stores_that_grew_are_read_at_their_new_size():
    cache = cache_of(3, 1100)
    lengths = {0: 510, 1: 20, 2: 511}
    fill(cache, lengths)
    assert cache.store("k0").shape[2] == 512
    x = tokens([row for slot, length in lengths.items() for row in chain(slot, length, 4)])
    assert stacked(cache.stage(x), x, torch.float64, None).mask.shape[-1] == 515
    assert both(lengths, x, slots=3, window=None, dtype=torch.float64) < 1e-12


def test_slots_are_stacked_where_it_pays(monkeypatch):
    def pays(*sizes: tuple[int, int], apart: int = 1) -> bool:
        return stacking_pays(
            [Segment(apart * i, 0, size, done, size, 0, True, None) for i, (done, size) in enumerate(sizes)]
        )

    alike = [(50 + i, 1) for i in range(8)]
    assert pays(*alike)
    assert not pays(*alike[:7])
    assert not pays(*[(50, 1)] * 8, (500, 1))  # one long text would make every other pay for its length
    assert not pays(*[(50, 1)] * 8, (0, 50))
    assert not pays(*alike, apart=3)  # most slots between the first and the last are idle
    monkeypatch.setattr(module, "MASK_NUMBERS", 8 * 58 - 1)
    assert not pays(*alike)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_engine_writes_the_same_text_together_or_one_by_one(temperature, monkeypatch):
    rng = random.Random(5)
    prompts = [[rng.randrange(61) for _ in range(rng.choice([1, 3, 20, 90]))] for _ in range(30)]
    params = [SamplingParams(temperature=temperature, top_p=0.98, seed=i, max_tokens=4 + i) for i in range(30)]
    model = tiny_runner(2)
    texts: list[list[list[int]]] = []
    for together in (False, True):
        monkeypatch.setattr(module, "stacking_pays", lambda segments, on=together: on)
        engine = make_engine(model, autoregressive.build(model), slots=8, capacity=160, chunk=64)
        texts.append([r.output for r in serve(engine, prompts, params)])
    assert texts[0] == texts[1]
