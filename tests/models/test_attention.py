"""Tree attention: a token sees its slot's committed rows and its own path, through a window if there is one."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import CacheSpec, ForwardInput, Segment
from draftwood.models.attention import torch_attention, visible_masks
from draftwood.models.stacked_attention import stacked, stacked_attention

HEADS, KV, WIDTH = 6, 2, 4
SPECS = (CacheSpec("k", KV, WIDTH, torch.float64), CacheSpec("v", KV, WIDTH, torch.float64))


class Slot:
    """A slot as plain lists: for every row its position and the rows it may see."""

    def __init__(self, committed: int, parents: list[int]) -> None:
        self.committed, self.parents = committed, parents
        self.paths: list[list[int]] = []
        for row, parent in enumerate(parents):
            self.paths.append([*(self.paths[parent] if parent >= 0 else []), row])

    def position(self, row: int) -> int:
        return self.committed + len(self.paths[row]) - 1

    def sees(self, row: int, window: int | None) -> list[int]:
        """Places in the cache: committed rows, then the path; a window counts positions, not rows."""
        rows = [*range(self.committed), *(self.committed + r for r in self.paths[row])]
        return rows if window is None else rows[-window:]


def random_slot(rng: random.Random, committed: int, size: int) -> Slot:
    return Slot(committed, [-1, *(rng.randrange(i) for i in range(1, size))])


def staged(slots: dict[int, Slot], cache: DenseCache, order: dict[int, list[int]] | None = None) -> ForwardInput:
    """A pass over every staged row of these slots, in a given order."""
    columns: list[tuple[int, int, int, int]] = []
    for number, slot in slots.items():
        for row in (order or {}).get(number, range(len(slot.parents))):
            columns.append((number, slot.position(row), row, slot.parents[row]))
    at, positions, rows, parents = torch.tensor(columns).T
    return ForwardInput(torch.zeros_like(at), at, positions, rows, parents, want=torch.arange(len(at)))


def filled(slots: dict[int, Slot]) -> DenseCache:
    """A cache whose entries are all noise, also those never written, so that reading one of them changes a result."""
    cache = DenseCache(SPECS, slots=3, capacity=32)
    for number, slot in slots.items():
        cache.admit(number, [])
        if slot.committed:
            size = slot.committed
            rows = torch.arange(size)
            cache.stage(ForwardInput(rows * 0, rows * 0 + number, rows, rows, rows - 1, rows[:0]))
            cache.commit([number], [list(range(size))])
    noise = torch.Generator().manual_seed(7)
    for name in ("k", "v"):
        store = cache.store(name)
        store.copy_(torch.randn(store.shape, generator=noise, dtype=torch.float64))
    return cache


def new_rows(size: int) -> tuple[Tensor, Tensor, Tensor]:
    noise = torch.Generator().manual_seed(size)
    q, k, v = (torch.randn(size, h, WIDTH, generator=noise, dtype=torch.float64) for h in (HEADS, KV, KV))
    return q, k, v


def by_hand(q: Tensor, cache: DenseCache, x: ForwardInput, slots: dict[int, Slot], window: int | None) -> Tensor:
    """One token, one head at a time, over the rows it may see."""
    out = torch.zeros(len(q), HEADS, WIDTH, dtype=torch.float64)
    for i, (number, row) in enumerate(zip(x.slots.tolist(), x.entries.tolist(), strict=True)):
        seen = slots[number].sees(row, window)
        for head in range(HEADS):
            keys, values = (cache.store(name)[number, head * KV // HEADS, seen] for name in ("k", "v"))
            probs = torch.softmax(keys @ q[i, head] / WIDTH**0.5, dim=0)
            out[i, head] = probs @ values
    return out.flatten(1)


def one_by_one(
    q: Tensor, k: Tensor, v: Tensor, cache: DenseCache, x: ForwardInput, segments: list[Segment], window: int | None
) -> Tensor:
    masks = visible_masks(segments, x, torch.float64, window)
    return torch_attention(q, k, v, cache.store("k"), cache.store("v"), x, segments, masks)


def together(
    q: Tensor, k: Tensor, v: Tensor, cache: DenseCache, x: ForwardInput, segments: list[Segment], window: int | None
) -> Tensor:
    attention_mask = stacked(segments, x, torch.float64, window)
    return stacked_attention(q, k, v, cache.store("k"), cache.store("v"), attention_mask)


BACKENDS = {"one by one": one_by_one, "together": together}


def attend(
    backend: str, slots: dict[int, Slot], x: ForwardInput, cache: DenseCache, window: int | None
) -> tuple[Tensor, Tensor]:
    """The backend's result, and that of plain loops over the same entries."""
    q, k, v = new_rows(x.size)
    segments = cache.stage(x)
    said = BACKENDS[backend](q, k, v, cache, x, segments, window)
    return said, by_hand(q, cache, x, slots, window)


@pytest.mark.parametrize("window", [None, 1, 3, 5, 40])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_token_attends_to_what_it_may_see(backend, seed, window):
    rng = random.Random(seed)
    slots = {
        2: random_slot(rng, committed=rng.randrange(8), size=9),
        0: random_slot(rng, committed=rng.randrange(8), size=1),
        1: Slot(0, list(range(-1, 6))),
    }
    cache = filled(slots)
    said, right = attend(backend, slots, staged(slots, cache), cache, window)
    assert torch.allclose(said, right, atol=1e-12, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_out_of_order_land_where_they_belong(backend):
    slots = {1: Slot(3, [-1, 0, 0, 1, 2])}
    cache = filled(slots)
    x = staged(slots, cache, {1: [0, 2, 1, 4, 3]})
    assert not cache.stage(x)[0].dense
    said, right = attend(backend, slots, x, cache, None)
    assert torch.allclose(said, right, atol=1e-12, rtol=0)
    _, k, _ = new_rows(x.size)
    assert torch.equal(cache.store("k")[1, :, 3 + 4], k[3])


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_an_earlier_pass_are_seen_by_a_later_one(backend):
    slots = {0: Slot(2, [-1, 0, 0, 1])}
    cache = filled(slots)
    whole = staged(slots, cache)
    first, second = slice(0, 2), slice(2, 4)
    attend(backend, slots, _part(whole, first), cache, None)
    said, right = attend(backend, slots, _part(whole, second), cache, None)
    assert torch.allclose(said, right, atol=1e-12, rtol=0)


def _part(x: ForwardInput, part: slice) -> ForwardInput:
    names = ("ids", "slots", "positions", "entries", "parents")
    columns = {name: getattr(x, name)[part] for name in names}
    return ForwardInput(**columns, want=torch.arange(len(columns["ids"])))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_but_the_own_rows_is_written(backend):
    slots = {1: Slot(3, [-1, 0, 0])}
    cache = filled(slots)
    before = cache.store("k").clone()
    attend(backend, slots, staged(slots, cache), cache, None)
    changed = (cache.store("k") != before).any(dim=(1, 3)).nonzero().tolist()
    assert changed == [[1, 3], [1, 4], [1, 5]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_attends_to_nothing(backend):
    slots = {0: Slot(2, [-1, 0])}
    cache = filled(slots)
    x = staged(slots, cache)
    pad = replace(_part(x, slice(0, 1)), slots=torch.tensor([-1]))
    names = ("ids", "slots", "positions", "entries", "parents")
    columns: dict[str, Any] = {n: torch.cat([getattr(x, n), getattr(pad, n)]) for n in names}
    padded = ForwardInput(**columns, want=torch.arange(2))
    q, k, v = new_rows(3)
    segments = cache.stage(padded)
    said = BACKENDS[backend](q, k, v, cache, padded, segments, None)
    assert torch.allclose(said[:2], by_hand(q[:2], cache, x, slots, None), atol=1e-12, rtol=0)
    assert (said[2] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrong", ["sibling", "window"])
def test_wrong_mask_is_noticed(wrong, backend):
    slots = {0: Slot(2, [-1, 0, 0])}
    cache = filled(slots)
    x = staged(slots, cache)
    told = replace(x, parents=torch.tensor([-1, 0, 1])) if wrong == "sibling" else x
    said, right = attend(backend, slots, told, cache, 2 if wrong == "window" else None)
    if wrong == "window":
        right = by_hand(new_rows(3)[0], cache, x, slots, 3)
    off = (said - right).abs().amax(1) > 1e-3
    assert off.tolist() == ([False, False, True] if wrong == "sibling" else [True, True, True])


def test_token_that_sees_everything_needs_no_mask():
    alone = Segment(slot=0, start=0, stop=1, committed=9, staged=1, first_entry=0, dense=True, visible=None)
    x = ForwardInput(*(torch.tensor([n]) for n in (0, 0, 9, 0, -1)), want=torch.tensor([0]))
    assert visible_masks([alone], x, torch.float32, None) == [None]
    assert visible_masks([alone], x, torch.float32, 10) == [None]
    (mask,) = visible_masks([alone], x, torch.float32, 4)
    assert mask is not None
    assert mask.tolist() == [[-torch.inf] * 6 + [0.0] * 4]


def test_window_counts_positions_not_rows():
    #  rows      0 ┬ 1 ┬ 3         row 4 stands at position 7, four rows behind the root but only two steps
    #              └ 2 └ 4
    cache = filled({0: Slot(5, [-1])})
    x = staged({0: Slot(5, [-1, 0, 0, 1, 1])}, cache)
    (mask,) = visible_masks(cache.stage(x), x, torch.float64, 4)
    assert mask is not None
    assert (mask[4] == 0).nonzero()[:, 0].tolist() == [4, 5, 6, 9]
