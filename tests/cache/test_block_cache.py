"""A cache in blocks keeps the entries of every text, shares what begins alike, and writes to no block that others hold."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from draftwood.cache.block_cache import BlockCache, SavedText
from draftwood.cache.blocks import Blocks
from draftwood.cache.prefix_tree import PrefixTree
from draftwood.core.common_prefix import common_prefix
from draftwood.core.forward import CacheSpec, ForwardInput
from draftwood.errors import EngineError, OutOfBlocks

SPECS = (CacheSpec("k0", 2, 3), CacheSpec("v0", 2, 3), CacheSpec("k1", 1, 2))
POOL = CacheSpec("own", 1, 1)
TENANTS = ((1,), (2,))


def cache(
    slots: int = 3, capacity: int = 400, max_cache_tokens: int | None = None, pools: Sequence[CacheSpec] = ()
) -> BlockCache:
    return BlockCache(SPECS, slots=slots, capacity=capacity, max_cache_tokens=max_cache_tokens, pools=pools)


def stage(c: BlockCache, slot: int, ids: Sequence[int], parents: Sequence[int]) -> None:
    """One pass of one slot: entries name their token, in all stores of the model."""
    at = torch.arange(len(ids))
    words = torch.tensor(list(ids))
    c.stage(ForwardInput(words, torch.full_like(at, slot), at, at, torch.tensor(list(parents)), at[:0]))
    where = c.places(slot, range(c.length(slot), c.length(slot) + len(ids)))
    for i, spec in enumerate(SPECS):
        c.entries(spec.name)[:, where] = (words[:, None] + 0.25 * i).expand(-1, spec.width)


def run(c: BlockCache, slot: int, ids: Sequence[int]) -> None:
    """A chain that becomes text."""
    c.reserve([slot], [len(ids)])
    stage(c, slot, ids, range(-1, len(ids) - 1))
    c.commit([slot], [list(range(len(ids)))])


def named(c: BlockCache, slot: int) -> list[int]:
    """The tokens that the committed entries of a slot name, the same in all stores."""
    where = c.places(slot, range(c.length(slot)))
    found = [c.entries(spec.name)[:, where] - 0.25 * i for i, spec in enumerate(SPECS)]
    for each in found:
        assert (each == found[0][:1, :, :1]).all(), "stores hold entries of different texts"
    return found[0][0, :, 0].long().tolist()


def holders(c: BlockCache) -> int:
    """Blocks that slots hold."""
    return len(c.blocks.refs) - c.blocks.available


class Rounds(RuleBasedStateMachine):
    """Texts of two tenants come, often beginning like others, grow through trees, are saved, preempted and forgotten, in a
    cache that is too small for all of them. The counts are checked and all texts compared after every step."""

    @initialize(tokens=st.sampled_from([96, 160, 640]), pool=st.booleans())
    def open(self, tokens: int, pool: bool) -> None:
        self.c = cache(capacity=200, max_cache_tokens=tokens, pools=(POOL,) if pool else ())
        self.texts: dict[int, list[int]] = {}
        self.pooled = pool
        self.filled: dict[int, int] = {}  # entries of the pool
        self.tenant: dict[int, tuple[int, ...]] = {}
        self.gone: list[tuple[list[int], tuple[int, ...]]] = []
        self.saved: list[SavedText] = []

    @rule(seed=st.integers(0, 2**32), steps=st.integers(1, 20))
    def go_on(self, seed: int, steps: int) -> None:
        rng = random.Random(seed)
        for _ in range(steps):
            possible = [self.admit] if len(self.texts) < self.c.slots else []
            if self.texts:
                possible += [*[self.a_round] * 6, self.preempt, *([self.fill] * 3 if self.pooled else [])]
            rng.choice([*possible, self.forget] if rng.random() < 0.05 else possible)(rng)
            self.every_slot_holds_its_text()

    def admit(self, rng: random.Random) -> None:
        slot = rng.choice([i for i in range(self.c.slots) if i not in self.texts])
        known = [text for text, _ in self.gone[-6:]] + list(self.texts.values())
        begin = rng.choice(known) if known and rng.random() < 0.8 else []
        text = begin[: rng.choice([len(begin), rng.randrange(len(begin) + 1)])]
        text = [*text, *(rng.randrange(3) for _ in range(rng.choice([0, 2, 40]))), 0][:150]
        most = rng.choice([None, None, rng.randrange(80)])
        tenant = rng.choice(TENANTS)
        saved = rng.choice([*self.saved, None])
        own = [
            t for t, other in (*self.gone, *((self.texts[i], self.tenant[i]) for i in self.texts)) if other == tenant
        ]
        expected, _ = self.c.present(text, tenant)
        found = done = self.c.admit(slot, text, most, tenant)
        if saved is not None:
            done = self.c.restore(slot, saved, text, most)
        assert done <= len(text) - 1 and (most is None or done <= most)
        assert done <= max((common_prefix(text, each) for each in own), default=0), "shared with another tenant"
        assert found <= min(done, expected)
        self.texts[slot], self.tenant[slot], self.filled[slot] = text[:done], tenant, done

    def a_round(self, rng: random.Random) -> None:
        slot, size = rng.choice(sorted(self.texts)), rng.choice([1, 5, 40])
        straight = rng.choice([0.7, 0.95, 1.0])
        parents = [i - 1 if rng.random() < straight else rng.randrange(-1, i) for i in range(size)]
        ids = [rng.randrange(3) for _ in range(size)]
        try:
            self.c.reserve([slot], [size])
        except OutOfBlocks:
            return
        stage(self.c, slot, ids, parents)
        path: list[int] = []
        node = rng.choice([size - 1, rng.randrange(-1, size)])
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        if rng.random() < 0.1:
            self.leave(slot)  # cancelled with its entries staged
            return
        self.c.commit([slot], [path])
        self.texts[slot] += [ids[i] for i in path]

    def fill(self, rng: random.Random) -> None:
        """The part that owns the pool has written some of its entries."""
        slot = rng.choice(sorted(self.texts))
        self.filled[slot] = rng.randint(self.filled[slot], len(self.texts[slot]))
        self.c.filled(slot, "own", self.filled[slot])

    def preempt(self, rng: random.Random) -> None:
        slot = rng.choice(sorted(self.texts))
        if rng.random() < 0.5:
            self.saved = [*self.saved, self.c.save(slot)][-2:]
        self.leave(slot)

    def leave(self, slot: int) -> None:
        self.c.free([slot])
        self.gone.append((self.texts.pop(slot), self.tenant.pop(slot)))

    def forget(self, rng: random.Random) -> None:
        self.c.forget()

    @invariant()
    def every_slot_holds_its_text(self) -> None:
        self.c.check_integrity()
        for slot, text in self.texts.items():
            assert self.c.text(slot) == text == named(self.c, slot), "entries of another text"


def rounds(examples: int = 10) -> None:
    run_state_machine_as_test(
        Rounds,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow],
            phases=(Phase.generate,),
            report_multiple_bugs=False,
        ),
    )


def test_every_slot_holds_its_text_whatever_was_shared_cut_saved_or_given_up() -> None:
    rounds()


def _part_not_copied(self: BlockCache, slot: int, source: int, entries: int) -> bool:
    self._extend([slot], [self.blocks.counts[slot] + 1])
    return True


def _shared_in_part(self: BlockCache, slot: int, source: int, entries: int) -> bool:
    self.blocks.refs[source] += 1
    self.blocks.tree.idle.pop(source, None)
    self.blocks._put(slot, source)
    return True


def _moves_one_by_one(self: BlockCache, slot: int, to: int, sources: Sequence[int]) -> None:
    for i, source in reversed(list(enumerate(sources))):
        where = self.places(slot, [source, to + i])
        for joined in self._joined.values():
            joined[:, :, where[1]] = joined[:, :, where[0]]


def _never_dropped(self: Blocks, block: int) -> None:
    if self.refs[block] > 1:
        self.refs[block] -= 1


def _without_tenant(self: PrefixTree, before: tuple[int, ...], tokens: Sequence[int]) -> list[int]:
    return [b for each in TENANTS for b in _find(self, each, tokens)][:1]


_find = PrefixTree.find


@pytest.mark.parametrize(
    "owner, name, fault",
    [
        (BlockCache, "_start_from", _part_not_copied),
        (BlockCache, "_start_from", _shared_in_part),
        (BlockCache, "_pull", _moves_one_by_one),
        (Blocks, "_drop", _never_dropped),
        (PrefixTree, "find", _without_tenant),
    ],
    ids=[
        "a copy without entries",
        "no copy before writing",
        "moves in the wrong order",
        "a leak",
        "other tenants' blocks",
    ],
)
def test_a_fault_is_found(
    owner: type, name: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twins."""
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises((AssertionError, EngineError, IndexError, KeyError)):
        rounds(200)


def test_texts_that_begin_alike_are_stored_once() -> None:
    c = cache()
    text = list(range(70))
    c.admit(0, [*text, 1])
    run(c, 0, text)
    assert c.present([*text, 2]) == (70, 64) and holders(c) == 3
    assert c.admit(1, [*text, 2]) == 70, "also the part of a block at the end of a text that runs"
    assert c.blocks.of(1)[:2] == c.blocks.of(0)[:2] and holders(c) == 4
    run(c, 1, [77])
    run(c, 0, [66])
    assert named(c, 0) == [*text, 66] and named(c, 1) == [*text, 77]
    c.check_integrity()


def test_a_text_that_was_run_twice_at_once_is_stored_once() -> None:
    c = cache()
    for slot in range(3):
        assert c.admit(slot, [*range(64), 1]) == 0
    for slot in range(3):
        run(c, slot, list(range(64)))
    assert holders(c) == 2 and c.blocks.of(0) == c.blocks.of(2)
    c.check_integrity()


def test_nothing_is_shared_behind_different_tokens() -> None:
    c = cache()
    c.admit(0, list(range(80)), before=(7,))
    run(c, 0, list(range(79)))
    assert c.present(range(80), (8,)) == (0, 0) and c.admit(1, list(range(80)), before=(8,)) == 0
    assert c.admit(2, list(range(80)), before=(7,)) == 79


def test_more_texts_are_found_again_than_there_are_slots() -> None:
    c = cache(slots=2)
    texts = [[i] * 40 for i in range(9)]
    for text in texts:
        c.admit(0, [*text, 0])
        run(c, 0, text)
        c.free([0])
    assert [c.present([*text, 0]) for text in texts] == [(40, 0)] * 9
    assert holders(c) == 0


def test_the_text_unused_for_longest_is_given_up_first_from_its_end_on() -> None:
    c = cache(slots=1, capacity=256, max_cache_tokens=288)  # nine blocks
    for word in (1, 2):
        c.admit(0, [*[word] * 100, 0])
        run(c, 0, [word] * 100)
        c.free([0])
    c.admit(0, [*[1] * 100, 0])
    c.free([0])
    c.admit(0, [3])
    c.reserve([0], [70])
    assert c.present([*[1] * 100, 0]) == (100, 0)
    assert c.present([*[2] * 100, 0]) == (64, 0), "two blocks were needed, one was free"
    c.check_integrity()


def test_room_is_given_to_all_or_to_none() -> None:
    c = cache(slots=2, capacity=128, max_cache_tokens=128)  # four blocks
    c.admit(0, [1])
    c.admit(1, [1])
    with pytest.raises(OutOfBlocks, match="5 blocks"):
        c.reserve([0, 1], [96, 33])
    assert holders(c) == 0
    c.reserve([0, 1], [96, 32])
    with pytest.raises(OutOfBlocks, match="holds 128"):
        c.reserve([0], [129])
    run(c, 1, [5] * 20)
    c.reserve([1], [40])
    assert c.spare == 64, "what slot 0 had reserved and not used is given to others"


def test_a_pool_that_is_filled_late_holds_back_what_is_shared() -> None:
    c = cache(pools=(POOL,))
    c.admit(0, [*range(70), 1])
    run(c, 0, list(range(70)))
    assert c.present([*range(70), 2]) == (0, 0)
    c.filled(0, "own", 40)
    assert c.present([*range(70), 2]) == (40, 32)
    c.free([0])
    assert c.admit(1, [*range(70), 2]) == 40
    c.check_integrity()


def test_entries_of_a_pool_are_written_and_read_where_their_slot_has_its_blocks() -> None:
    c, own = cache(pools=(POOL,)), list(range(40))
    for slot in (0, 1):
        c.admit(slot, [*own, 99])
        run(c, slot, [slot, *own])
    slots, entries = torch.tensor([0, 1, 1]), torch.tensor([33, 33, 2])
    values = torch.tensor([5.0, 6.0, 7.0])[:, None, None]
    c.write_pool("own", slots, entries, values)
    assert torch.equal(c.read_pool("own", slots, entries), values), "each slot has a place of its own"
    assert not c.read_pool("own", torch.tensor([0]), torch.tensor([2])).any()


def test_a_saved_text_comes_back_although_its_blocks_were_given_up() -> None:
    c = cache(slots=2, capacity=256, max_cache_tokens=192)
    text = [i % 7 for i in range(150)]
    c.admit(0, [*text, 0])
    run(c, 0, text)
    saved = c.save(0)
    c.free([0])
    c.admit(1, [9])
    run(c, 1, [9] * 150)
    c.free([1])
    c.forget()
    for joined in c._joined.values():
        joined.fill_(-1.0)
    again = [*text[:140], 8, 8]
    assert c.admit(0, again) == 0 and c.restore(0, saved, again) == 140, "as far as the texts agree"
    assert named(c, 0) == text[:140]
    assert c.admit(1, [*text, 0], before=(4,)) == 0
    assert c.restore(1, saved, [*text, 0]) == 0, "it stood behind other tokens"
    c.check_integrity()


def test_an_unused_long_context_costs_no_memory() -> None:
    c = cache(slots=4, capacity=8192)
    assert c.entries("k0").shape[1] <= 4 * 512
    c.admit(0, [1])
    run(c, 0, [1] * 3000)
    assert 3000 <= c.entries("k0").shape[1] <= 6100, "it grows with what is held"
    c.free([0])
    size = c.entries("k0").shape[1]
    for word in range(2, 9):
        c.admit(0, [word])
        run(c, 0, [word] * 1500)
        c.free([0])
        c.check_integrity()
    assert c.entries("k0").shape[1] == size, "and not with what is only kept for later"


def test_a_bound_that_was_set_is_used_for_texts_kept_for_later() -> None:
    c = cache(slots=2, capacity=8192, max_cache_tokens=8192)
    texts = [[word] * 1000 for word in range(9)]
    for text in texts:
        c.admit(0, [*text, 0])
        run(c, 0, text)
        c.free([0])
    assert c.entries("k0").shape[1] == 8192, "256 blocks, of which each text fills 32"
    assert [c.present([*text, 0])[0] for text in texts] == [0, *[1000] * 8]


def test_wrong_calls_are_refused_with_their_slot() -> None:
    c = cache()
    with pytest.raises(EngineError, match="without being admitted"):
        stage(c, 0, [1], [-1])
    c.admit(0, [1])
    with pytest.raises(EngineError, match="admitted twice"):
        c.admit(0, [1])
    with pytest.raises(EngineError, match="no pool"):
        c.pool("other")
    with pytest.raises(EngineError, match="one stretch"):
        c.pairs(range(1))
    with pytest.raises(EngineError, match="per-slot"):
        BlockCache([CacheSpec("s", 1, 1, per_slot=True)], slots=1, capacity=8)
