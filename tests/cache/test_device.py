"""A cache whose staged tokens the host never reads counts them, and keeps the right entries in all layers."""

import random

import pytest
import torch

from draftwood.cache.device import DeviceCache
from draftwood.core.forward import CacheSpec
from draftwood.errors import EngineError, OutOfBlocks
from draftwood.testing.host_reads import HostReads

LAYERS = 3


def cache(slots: int = 3, capacity: int = 16, max_cache_tokens: int | None = None) -> DeviceCache:
    specs = tuple(CacheSpec(f"{kind}{i}", 2, 2) for i in range(LAYERS) for kind in "kv")
    return DeviceCache(specs, slots=slots, capacity=capacity, max_cache_tokens=max_cache_tokens)


def write(c: DeviceCache, slot: int, tokens: list[int]) -> bool:
    """Stage entries that name their token, layer and kind."""
    moved = c.note(slot, len(tokens))
    base = c.length(slot)
    for i in range(LAYERS):
        for k, kind in enumerate("kv"):
            for entry, token in enumerate(tokens):
                c.store(f"{kind}{i}")[slot, :, base + entry] = 100 * token + 10 * i + k
    return moved


def kept(c: DeviceCache, slot: int) -> list[int]:
    """The tokens that the entries of a slot name, which must be the same in every layer."""
    texts: list[list[int]] = []
    for i in range(LAYERS):
        for k, kind in enumerate("kv"):
            entries = c.store(f"{kind}{i}")[slot, :, : c.length(slot)] - (10 * i + k)
            assert (entries == entries[:1, :, :1]).all(), "every number of an entry names the same token"
            texts.append((entries[0, :, 0] / 100).long().tolist())
    assert all(text == texts[0] for text in texts)
    return texts[0]


def test_a_path_through_a_tree_is_moved_in_all_layers() -> None:
    rng = random.Random(1)
    c = cache(capacity=200)
    for slot in range(3):
        c.admit(slot, [1, 2])
    texts: list[list[int]] = [[], [], []]
    for _ in range(12):
        slots = rng.sample(range(3), rng.randrange(1, 4))
        tokens = [[rng.randrange(60) for _ in range(rng.randrange(1, 9))] for _ in slots]
        paths = [sorted(rng.sample(range(len(each)), rng.randrange(0, len(each) + 1))) for each in tokens]
        for slot, each in zip(slots, tokens, strict=True):
            write(c, slot, each)
        words = [[each[e] for e in path] for each, path in zip(tokens, paths, strict=True)]
        with HostReads() as reads:
            c.keep(slots, paths, words)
        assert reads.total == 0, "and nothing is read for it"
        for slot, new in zip(slots, words, strict=True):
            texts[slot] += new
        for slot in range(3):
            assert kept(c, slot) == texts[slot] == c.text(slot)
    assert sum(map(len, texts)) > 20


def test_entries_that_were_never_staged_cannot_be_kept() -> None:
    c = cache()
    c.admit(0, [1])
    write(c, 0, [1, 2, 3])
    with pytest.raises(EngineError, match="3 staged entries"):
        c.keep([0], [[0, 3]], [[1, 4]])
    c.keep([0], [[0]], [[1]])
    with pytest.raises(EngineError, match="0 staged entries"):
        c.keep([0], [[0]], [[1]])
    with pytest.raises(EngineError, match="without being admitted"):
        c.note(1, 1)


def test_a_text_that_begins_alike_starts_from_the_entries_that_are_here() -> None:
    c = cache()
    c.admit(0, [1, 2, 3, 4])
    write(c, 0, [1, 2, 3])
    c.keep([0], [[0, 1, 2]], [[1, 2, 3]])
    assert c.admit(1, [1, 2, 9]) == 2 and kept(c, 1) == [1, 2], "copied from a slot in use"
    c.free([0, 1])
    assert c.prefer([1, 2, 3, 5], [0, 1, 2]) == 0
    assert c.admit(0, [1, 2, 3]) == 2, "the last token is the root: it always runs"
    assert kept(c, 0) == [1, 2]
    assert (c.store("k1")[0, :, 2] == 0).all(), "what stood behind it is gone"
    assert c.admit(2, [1, 2, 3], before=[7]) == 0, "nothing of a text that began differently"


def test_what_an_earlier_text_wrote_is_gone_however_it_ended() -> None:
    c = cache()
    c.admit(0, [1])
    write(c, 0, [1, 2, 3, 4, 5])
    c.free([0])  # cancelled, with its entries staged
    assert c.admit(0, [9]) == 0
    assert all((c.store(f"{kind}{i}")[0, :, :16] == 0).all() for i in range(LAYERS) for kind in "kv")
    with pytest.raises(EngineError, match="0 staged"):
        c.keep([0], [[0]], [[9]])


def test_stores_grow_with_the_longest_text_and_say_so() -> None:
    c = cache(slots=2, capacity=1500)
    assert c.room == 511
    for slot in range(2):
        c.admit(slot, [1])
    assert not write(c, 0, list(range(50)))
    c.keep([0], [list(range(50))], [list(range(50))])
    c.store("k0")[:, :, 511] = float("nan")  # padding without room
    assert not c.note(1, 511), "the last one still fits"
    assert c.note(1, 512) and c.room == 1023
    assert kept(c, 0) == list(range(50))
    assert (c.store("k0")[:, :, 511] == 0).all(), "an entry like others now"
    assert c.note(1, 1500) and c.room == 1500
    assert not c.note(1, 5000) and c.room == 1500 == c.capacity, "what has no room moves nothing"


def test_room_is_counted_without_the_slot_and_the_entry_of_padding() -> None:
    c = cache(slots=2, capacity=16)
    assert (c.slots, c.capacity, c.spare, c.max_cache_tokens, c.padding) == (2, 16, 32, 32, 2)
    for slot in range(2):
        c.admit(slot, [1])
    c.reserve([0, 1], [16, 16])
    assert c.spare == 0
    with pytest.raises(OutOfBlocks, match="holds 16"):
        c.max_cache_tokens = 100
        c.reserve([0], [17])
    c.free([0, 1])
    c.check_integrity()


def test_places_are_where_the_entries_of_a_layer_lie() -> None:
    c = cache()
    for i in range(LAYERS):
        pair = c.pair(i)
        pair.zero_()
        slots, entries = torch.tensor([[2, 2], [0, 3]]), torch.tensor([[4, 5], [0, 16]])
        pair.view(-1, 2)[c.places(slots, entries)] = 1.0
        assert c.store(f"k{i}").nonzero()[:, [0, 2]].unique(dim=0).tolist() == [[0, 0], [2, 4], [2, 5], [3, 16]]
        assert torch.equal(c.store(f"k{i}"), c.store(f"v{i}"))
