"""A cache in blocks keeps the entries of every text, shares what begins alike, and writes to no block of two texts."""

import random

import pytest
import torch

from draftwood.cache.device import DeviceCache
from draftwood.cache.paged import BLOCK, PagedCache
from draftwood.core.forward import CacheSpec
from draftwood.errors import EngineError, OutOfBlocks
from draftwood.testing.host_reads import HostReads

LAYERS = 2
SPECS = tuple(CacheSpec(f"{kind}{i}", 2, 2) for i in range(LAYERS) for kind in "kv")
POOL = CacheSpec("own", 1, 3)


def cache(slots: int = 3, capacity: int = 100, max_cache_tokens: int | None = None) -> PagedCache:
    return PagedCache(SPECS, slots=slots, capacity=capacity, max_cache_tokens=max_cache_tokens, pools=(POOL,))


def write(c: PagedCache, slot: int, tokens: list[int]) -> bool:
    """Stage entries that name their token, layer and kind, in all stores."""
    moved = c.note(slot, len(tokens))
    c.ready()
    base = c.length(slot)
    entries = torch.arange(base, base + len(tokens))[None]
    named = torch.tensor(tokens, dtype=torch.float32).repeat_interleave(2)
    for i in range(LAYERS):
        keys, values = c.places(torch.full_like(entries, slot), entries).view(-1, 4).tensor_split(2, dim=1)
        flat = c.pair(i).view(-1, 2)
        flat[keys.flatten()] = (100 * named + 10 * i)[:, None]
        flat[values.flatten()] = (100 * named + 10 * i + 1)[:, None]
    values = torch.tensor(tokens, dtype=torch.float32)[:, None, None].expand(-1, 1, 3)
    c.write_pool("own", torch.full_like(entries[0], slot), entries[0], values)
    c.filled(slot, "own", base + len(tokens))
    return moved


def kept(c: PagedCache, slot: int) -> list[int]:
    """The tokens that the entries of a slot name, the same in every store."""
    c.ready()
    size = c.length(slot)
    entries = torch.arange(size)
    texts = [c.read_pool("own", torch.full_like(entries, slot), entries)[:, 0, 0].long().tolist()]
    assert texts[0] == c.store("own")[slot, 0, :size, 0].long().tolist()
    for i in range(LAYERS):
        for k, kind in enumerate("kv"):
            entries = c.store(f"{kind}{i}")[slot, :, :size] - (10 * i + k)
            assert (entries == entries[:1, :, :1]).all()
            texts.append((entries[0, :, 0] / 100).long().tolist())
    assert all(text == texts[0] for text in texts)
    return texts[0]


def random_rounds(seed: int) -> int:
    """Texts that often begin like others, trees, cancelled rounds. How many entries were shared."""
    rng = random.Random(seed)
    c, shared = cache(), 0
    dense = DeviceCache(SPECS, slots=3, capacity=100)
    texts: dict[int, list[int]] = {}
    old: list[list[int]] = [[0]]
    for _ in range(200):
        slot = rng.randrange(3)
        if slot not in texts:
            before = rng.choice([*texts.values(), *old])
            text = [*before[: rng.choice([1, len(before), rng.randrange(len(before) + 1)])], rng.randrange(9)]
            done = c.admit(slot, [*text, 0])
            assert done == dense.admit(slot, [*text, 0]) == c.length(slot), "as much as a dense cache"
            texts[slot], shared = text[:done], shared + done
        elif len(texts[slot]) > 70 or rng.random() < 0.1:
            if rng.random() < 0.5:
                write(c, slot, [8] * rng.randrange(1, 30))  # cancelled with its entries staged
            old.append(texts.pop(slot))
            for each in (c, dense):
                each.free([slot])
            continue
        tokens = [rng.randrange(9) for _ in range(rng.randrange(1, 24))]
        path = sorted(rng.sample(range(len(tokens)), rng.randrange(0, len(tokens) + 1)))
        c.reserve([slot], [len(tokens)])
        write(c, slot, tokens)
        dense.note(slot, len(tokens))
        words = [tokens[e] for e in path]
        with HostReads() as reads:
            for each in (c, dense):
                each.keep([slot], [path], [words])
        assert reads.total == 0
        texts[slot] += words
        c.check_integrity()
        for s, text in texts.items():
            assert kept(c, s) == text == c.text(s)
    return shared


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
def test_entries_are_those_of_the_text_whatever_was_shared_cut_or_freed(seed: int) -> None:
    assert random_rounds(seed) > 30


def test_a_block_that_is_shared_in_part_and_not_copied_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin."""
    monkeypatch.setattr(PagedCache, "_copy", lambda self, source, to, entries: None)
    with pytest.raises(AssertionError):
        random_rounds(0)


def test_moves_that_read_what_they_wrote_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the order of moves."""
    from draftwood.kernels.gpu.twins import Twins

    def one_by_one(self: Twins, store: torch.Tensor, source: torch.Tensor, to: torch.Tensor, *_: object) -> None:
        for s, t in reversed(list(zip(source.tolist(), to.tolist(), strict=True))):
            store[:, t // BLOCK, :, t % BLOCK] = store[:, s // BLOCK, :, s % BLOCK]

    monkeypatch.setattr(Twins, "moved", one_by_one)
    with pytest.raises(AssertionError):
        random_rounds(0)


def test_texts_that_begin_alike_hold_the_same_blocks() -> None:
    c = cache()
    text = list(range(40))
    c.admit(0, [*text, 1])
    write(c, 0, text)
    c.keep([0], [text], [text])
    assert c.admit(1, [*text, 2]) == 40
    assert c.blocks.of(1)[:2] == c.blocks.of(0)[:2] and c.blocks.of(1)[2] != c.blocks.of(0)[2]
    write(c, 1, [77])
    c.keep([1], [[0]], [[77]])
    write(c, 0, [66])
    c.keep([0], [[0]], [[66]])
    assert kept(c, 0) == [*text, 66] and kept(c, 1) == [*text, 77]
    c.free([0, 1])
    c.check_integrity()
    assert c.prefer([*text, 77, 5], [0, 1, 2]) == 1 and c.admit(1, [*text, 77, 5]) == 41
    assert c.admit(2, text[:17], before=[3]) == 0, "nothing of a text that began differently"
    c.forget()
    c.check_integrity()
    assert c.admit(0, [*text, 66, 5]) == 40, "that of slot 0 is forgotten, that of slot 1 is in use"


def test_what_an_earlier_text_wrote_is_gone() -> None:
    c = cache(slots=1, capacity=64)
    c.admit(0, [1])
    write(c, 0, list(range(1, 21)))  # a number of token 0 would be 0
    c.keep([0], [list(range(20))], [list(range(1, 21))])
    for i in range(LAYERS):
        for blocks in (c.pair(i)[:, 2:], c.pool("own")[2:]):
            blocks.masked_fill_(blocks == 0, float("nan"))
    c.free([0])
    assert c.admit(0, [*range(1, 19), 30]) == 18
    c.note(0, 30)
    c.ready()
    assert c.store("k1")[0, :, 18:48].eq(0).all() and c.store("k1")[0, :, :18].isfinite().all()
    assert c.read(c.pairs(range(1)), torch.tensor([0]), -1, 64)[0].isfinite().all()


def test_blocks_of_free_slots_are_taken_when_there_are_no_others() -> None:
    c = cache(slots=3, capacity=64, max_cache_tokens=64)
    for slot in range(2):
        c.admit(slot, [slot, 1])
        write(c, slot, [slot] * 30)
        c.keep([slot], [list(range(30))], [[slot] * 30])
        c.free([slot])
    c.admit(2, [5, 1])
    c.reserve([2], [64])
    write(c, 2, [5] * 64)
    c.keep([2], [list(range(64))], [[5] * 64])
    assert kept(c, 2) == [5] * 64
    c.check_integrity()
    assert c.length(0) == 0, "the one unused for longest went first"
    with pytest.raises(OutOfBlocks):
        c.reserve([2], [1])


def test_stores_grow_and_say_so() -> None:
    c = cache(slots=2, capacity=2000)
    c.admit(0, [1])
    assert not write(c, 0, [1] * 500)
    c.keep([0], [list(range(500))], [[1] * 500])
    c.admit(1, [2])
    assert write(c, 1, [2] * 900), "captured passes hold old addresses now"
    assert kept(c, 0) == [1] * 500
    c.check_integrity()
    with pytest.raises(EngineError, match="without being admitted"):
        c.free([0])
        c.note(0, 1)
    with pytest.raises(EngineError, match="no pool"):
        c.pool("other")


def test_stores_that_grow_at_an_admission_say_so_at_the_next_pass() -> None:
    c = cache(slots=2, capacity=2000)
    c.admit(0, [1])
    text = [1] * (62 * BLOCK + 3)  # 63 blocks of 64
    c.blocks.free[:] = c.blocks.free[-63:]
    for taken in range(2, len(c.blocks.refs)):
        if taken not in c.blocks.free:
            c.blocks.refs[taken] = 1  # as if others held them
    assert not write(c, 0, text)
    c.keep([0], [list(range(len(text)))], [text])
    assert c.admit(1, [*text, 5]) == len(text), "its last block is a copy, for which there was no room"
    assert c.note(1, 1), "captured passes hold old addresses now"
    assert not c.note(0, 1)


def test_padding_and_tokens_without_room_write_where_no_text_reads() -> None:
    c = cache(slots=1, capacity=20)
    c.admit(0, [1])
    c.note(0, 40)
    c.ready()
    places = c.places(torch.tensor([[0, 0, 1]]), torch.tensor([[19, 20, 20]]))
    c.pair(0).view(-1, 2)[places] = float("nan")
    assert c.store("k0")[0, :, :19].isfinite().all() and c.store("k0")[1].isfinite().all()
    assert not c.store("k0")[0, :, 19].isfinite().any()
    c.write_pool("own", torch.tensor([0, 0]), torch.tensor([20, 29]), torch.ones(2, 1, 3))
    assert not c.store("own")[0].any(), "entries without room are those of no text"


def test_a_block_that_is_counted_wrong_is_found() -> None:
    c = cache()
    c.admit(0, [1, 2])
    write(c, 0, [1])
    c.blocks.hold(c.blocks.of(0)[0])
    with pytest.raises(EngineError, match="another number"):
        c.check_integrity()
