"""A slot's committed entries are its text, whatever happened in between."""

import pytest
import torch

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import CacheSpec, ForwardInput
from draftwood.errors import EngineError, OutOfBlocks
from draftwood.testing.cache_checks import check_cache

SPEC = (CacheSpec("ids", 1, 1, torch.int64),)


def cache(slots: int = 3, capacity: int = 16, max_cache_tokens: int | None = None) -> DenseCache:
    return DenseCache(SPEC, slots=slots, capacity=capacity, max_cache_tokens=max_cache_tokens)


def put(c: DenseCache, slot: int, ids: list[int], parents: list[int], entries: list[int] | None = None) -> None:
    entries = list(range(len(ids))) if entries is None else entries
    t = torch.tensor
    x = ForwardInput(
        t(ids), torch.full((len(ids),), slot), t(entries), t(entries), t(parents), t([], dtype=torch.int64)
    )
    c.stage(x)
    c.store("ids")[slot, 0, c.length(slot) + t(entries), 0] = t(ids)


def text(c: DenseCache, slot: int) -> list[int]:
    return c.store("ids")[slot, 0, : c.length(slot), 0].tolist()


def test_the_contract_of_caches_holds() -> None:
    check_cache(lambda slots, capacity: DenseCache(SPEC, slots=slots, capacity=capacity), "ids")


def test_the_contract_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DenseCache.commit
    monkeypatch.setattr(
        DenseCache, "commit", lambda self, slots, entries: real(self, slots, [list(range(len(e))) for e in entries])
    )
    with pytest.raises(AssertionError):
        check_cache(lambda slots, capacity: DenseCache(SPEC, slots=slots, capacity=capacity), "ids")


def test_the_contract_notices_entries_of_a_text_that_began_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    real = DenseCache.admit
    monkeypatch.setattr(
        DenseCache, "admit", lambda self, slot, tokens, most=None, before=(): real(self, slot, tokens, most)
    )
    with pytest.raises(AssertionError, match="behind different tokens"):
        check_cache(lambda slots, capacity: DenseCache(SPEC, slots=slots, capacity=capacity), "ids")


def test_a_path_through_a_tree_becomes_text_and_the_rest_is_gone() -> None:
    c = cache()
    c.admit(0, [7, 8])
    put(c, 0, [7, 1, 2, 3], [-1, 0, 0, 2])
    c.commit([0], [[0, 2, 3]])
    assert text(c, 0) == [7, 2, 3] == c.text(0)


def test_entries_staged_in_several_passes_see_their_own_path_only() -> None:
    c = cache()
    c.admit(0, [7])
    t = torch.tensor
    none = t([], dtype=torch.int64)
    c.stage(ForwardInput(t([7]), t([0]), t([0]), t([0]), t([-1]), none))
    c.stage(ForwardInput(t([1, 2]), t([0, 0]), t([1, 1]), t([1, 2]), t([0, 0]), none))
    (s,) = c.stage(ForwardInput(t([3]), t([0]), t([2]), t([3]), t([2]), none))
    assert s.visible is not None and s.visible.tolist() == [[True, False, True, True]]


def test_a_freed_text_is_taken_over_by_a_request_that_begins_alike() -> None:
    c = cache()
    c.admit(0, [1, 2, 3, 4])
    put(c, 0, [1, 2, 3], [-1, 0, 1])
    c.commit([0], [[0, 1, 2]])
    assert c.admit(1, [1, 2, 9]) == 2 and text(c, 1) == [1, 2], "copied from a slot that is still in use"
    c.free([0, 1])
    assert c.prefer([1, 2, 3, 5], [0, 1, 2]) == 0
    assert c.admit(0, [1, 2, 3]) == 2, "the last token is the root: it always runs"


def test_a_text_of_somebody_else_keeps_its_slot_while_another_is_free() -> None:
    c = cache()
    c.admit(0, [1, 2, 3, 4], before=[9])
    put(c, 0, [1, 2, 3], [-1, 0, 1])
    c.commit([0], [[0, 1, 2]])
    c.free([0])
    assert c.prefer([1, 2, 3, 5], [0, 1, 2], before=[9]) == 0
    assert c.prefer([1, 2, 3, 5], [0, 1, 2], before=[8]) != 0, "its entries would not be shared, only overwritten"


def test_room_is_given_to_all_or_to_none() -> None:
    c = cache(slots=2, capacity=16, max_cache_tokens=10)
    c.admit(0, [1])
    c.admit(1, [1])
    with pytest.raises(OutOfBlocks, match="11 cache entries"):
        c.reserve([0, 1], [6, 5])
    c.reserve([0, 1], [5, 5])
    assert c.spare == 0
    with pytest.raises(OutOfBlocks, match="holds 16"):
        cache_one = cache(slots=1, capacity=16, max_cache_tokens=100)
        cache_one.admit(0, [1])
        cache_one.reserve([0], [17])


def test_wrong_calls_are_refused_with_their_slot() -> None:
    c = cache()
    with pytest.raises(EngineError, match="without being admitted"):
        put(c, 0, [1], [-1])
    c.admit(0, [1])
    with pytest.raises(EngineError, match="admitted twice"):
        c.admit(0, [1])
    put(c, 0, [1], [-1])
    with pytest.raises(EngineError, match="no staged entries"):
        c.commit([0], [[3]])


def test_an_unused_long_context_costs_no_memory() -> None:
    big = DenseCache((CacheSpec("ids", 1, 1, torch.int64),), slots=4, capacity=8192)
    assert big.store("ids").shape[2] <= 512
    big.admit(2, list(range(2000)))
    ids = list(range(1500))
    put(big, 2, ids, list(range(-1, 1499)))
    big.commit([2], [ids])
    assert text(big, 2) == ids and 1500 <= big.store("ids").shape[2] <= 3000, "it grows with the text"


def test_what_grew_inside_a_pass_can_be_moved_outside_of_it() -> None:
    c = cache(slots=1, capacity=1024)
    c.admit(0, list(range(600)))
    with torch.inference_mode():
        put(c, 0, list(range(600)), list(range(-1, 599)))
    c.commit([0], [[0, 2, 599]])
    assert text(c, 0) == [0, 2, 599]
