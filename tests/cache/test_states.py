"""A slot's state is that of its committed text, whatever was staged beside it."""

from collections.abc import Sequence

import pytest
import torch

from draftwood.cache import dense
from draftwood.cache.dense import DenseCache
from draftwood.cache.device import DeviceCache
from draftwood.cache.states import SlotStates
from draftwood.core.forward import CacheSpec, ForwardInput
from draftwood.errors import EngineError, ModelError
from draftwood.testing.cache_checks import check_cache, stage, state_of

SPECS = (CacheSpec("h", 1, 1, torch.float64, per_slot=True), CacheSpec("ids", 1, 1, torch.int64))


def cache(slots: int = 3, capacity: int = 64) -> DenseCache:
    return DenseCache(SPECS, slots=slots, capacity=capacity)


def read(c: DenseCache, slot: int, ids: list[int]) -> None:
    """Tokens in a line, all of them kept."""
    c.reserve([slot], [len(ids)])
    stage(c, slot, ids, list(range(-1, len(ids) - 1)), state="h")
    c.commit([slot], [list(range(len(ids)))])


def state(c: DenseCache, slot: int) -> int:
    return int(c.state("h")[slot])


def test_the_contracts_of_both_kinds_of_stores_hold() -> None:
    check_cache(cache, "ids", "h")
    check_cache(lambda slots, capacity: DenseCache(SPECS[1:], slots=slots, capacity=capacity), "ids")


def first_kept(real: SlotStates, slots: Sequence[int], entries: Sequence[Sequence[int]]) -> None:
    """Keeps the state after the first entry of a path instead of the last."""
    for name, x in real.committed.items():
        for slot, kept in zip(slots, entries, strict=True):
            if kept:
                x[slot] = real.staged[name][slot, kept[0]]
    for slot, kept in zip(slots, entries, strict=True):
        real._tokens[slot] += len(kept)


def test_the_contract_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setattr(SlotStates, "keep", first_kept)
        with pytest.raises(AssertionError, match="not that of its text"):
            check_cache(cache, "ids", "h")
    with monkeypatch.context() as m:
        m.setattr(dense, "check_order", lambda *given: None)
        with pytest.raises(AssertionError, match="child stands before its parent"):
            check_cache(cache, "ids", "h")
    with monkeypatch.context() as m:
        m.setattr(SlotStates, "start", lambda self, slot, source, tokens: self._tokens.__setitem__(slot, tokens))
        with pytest.raises(AssertionError, match="another text's state"):
            check_cache(cache, "ids", "h")


def test_only_a_whole_text_is_shared() -> None:
    c = cache()
    c.admit(0, [1, 2, 3, 4])
    read(c, 0, [1, 2, 3])
    assert c.admit(1, [1, 2, 9]) == 0 and state(c, 1) == 0, "the state after [1, 2] is known no more"
    c.free([1])
    assert c.admit(1, [1, 2, 3, 9]) == 3 and state(c, 1) == state_of([1, 2, 3]), "the whole text, copied"
    c.free([1])
    assert c.admit(1, [1, 2, 3]) == 0, "the last token is the root and always runs; the state has read it already"
    c.free([1])
    assert c.admit(1, [1, 2, 3, 9], most=2) == 0, "two tokens of three are no whole text"
    assert state(c, 0) == state_of([1, 2, 3])


def test_a_preempted_text_goes_on_from_its_own_slot() -> None:
    c = cache()
    c.admit(0, [1, 2, 3])
    read(c, 0, [1, 2])
    c.free([0])
    assert c.prefer([1, 2, 3], [0, 1, 2]) == 0
    assert c.prefer([1, 2], [0, 1, 2]) != 0, "its state has read the root"
    assert c.admit(0, [1, 2, 3]) == 2 and state(c, 0) == state_of([1, 2])
    c.check_integrity()


def test_per_token_stores_alone_still_share_any_prefix() -> None:
    """The twin: what is refused above is refused for the state's sake."""
    c = DenseCache(SPECS[1:], slots=2, capacity=8)
    c.admit(0, [1, 2, 3, 4])
    index = torch.arange(3)
    c.stage(ForwardInput(index + 1, torch.zeros_like(index), index, index, index - 1, index[:0]))
    c.commit([0], [[0, 1, 2]])
    assert c.admit(1, [1, 2, 9]) == 2


def test_staged_states_grow_with_the_pass_and_keep_what_was_staged() -> None:
    c = cache(slots=2)
    c.admit(1, [0])
    read(c, 1, [0])
    before = c.staged_states("h").shape[1]
    stage(c, 1, [7], [-1], state="h")
    c.admit(0, list(range(1, 31)))
    read(c, 0, list(range(1, 30)))
    assert before < 29 <= c.staged_states("h").shape[1] and state(c, 0) == state_of(range(1, 30))
    c.commit([1], [[0]])
    assert state(c, 1) == state_of([0, 7]), "staged before the other slot's pass"


def test_what_is_no_whole_path_is_not_kept() -> None:
    c = cache()
    c.admit(0, [1])
    stage(c, 0, [1, 2, 3, 4], [-1, 0, 0, 2], state="h")
    for wrong in ([0, 1, 3], [2, 3], [0, 7], [-1]):
        with pytest.raises(EngineError, match="no whole path"):
            c.commit([0], [wrong])
    c.commit([0], [[0, 2, 3]])
    assert state(c, 0) == state_of([1, 3, 4]) and c.text(0) == [1, 3, 4]


def test_a_state_that_lost_its_text_is_noticed() -> None:
    c = cache()
    c.admit(0, [1, 2])
    read(c, 0, [1])
    c._slots[0].text.append(2)
    with pytest.raises(EngineError, match="a state after 1 tokens"):
        c.check_integrity()


def test_caches_without_per_slot_stores_say_so() -> None:
    with pytest.raises(EngineError, match="per_slot=True"):
        DenseCache(SPECS[1:], slots=1, capacity=8).state("h")


def test_an_accelerators_cache_refuses_them_by_name() -> None:
    with pytest.raises(ModelError, match="not kept on an accelerator: h\nhint: run this model on the CPU"):
        DeviceCache(SPECS, slots=1, capacity=8)
    DeviceCache(SPECS[1:], slots=1, capacity=8)
