"""Checks for any cache: entries and states of a slot are those of its text, whatever was staged, cut, shared or freed."""

import random
from collections.abc import Callable, Sequence

import torch

from draftwood.core.forward import ForwardInput, Segment
from draftwood.core.protocols import Cache
from draftwood.errors import EngineError

MODULUS = 1_000_003


def after(state: int, token: int) -> int:
    """The state after a token: it tells texts apart, their order included."""
    return (31 * state + token + 1) % MODULUS


def state_of(text: Sequence[int]) -> int:
    state = 0
    for token in text:
        state = after(state, token)
    return state


def stage(
    cache: Cache, slot: int, ids: list[int], parents: list[int], *, store: str | None = None, state: str | None = None
) -> Segment:
    """One pass over one slot. It writes each token to its entry of `store`, and to `state` the state after each token, as
    a recurrent layer does: the parent's state in, the own state out."""
    index = torch.arange(len(ids))
    x = ForwardInput(torch.tensor(ids), torch.full_like(index, slot), index, index, torch.tensor(parents), index[:0])
    (segment,) = cache.stage(x)
    if store is not None:
        entries = cache.store(store)[slot, 0, :, 0]
        entries[segment.committed : segment.committed + len(ids)] = x.ids.to(entries.dtype)
    if state is not None:
        committed, staged = cache.state(state)[slot, 0], cache.staged_states(state)[slot, :, 0]
        for entry, (token, parent) in enumerate(zip(ids, parents, strict=True)):
            staged[entry, 0] = after(int(committed[0] if parent < 0 else staged[parent, 0]), token)
    return segment


def check_cache(make: Callable[[int, int], Cache], store: str, state: str | None = None) -> None:
    """`make(slots, capacity)`: a cache whose `store` holds one number per token, and `state` one number per slot. Many texts
    begin with the whole text of another slot."""
    _check_before(make(2, 16))
    rng = random.Random(5)
    cache = make(3, 64)
    texts: dict[int, list[int]] = {}
    shared = 0
    for _ in range(300):
        slot = rng.randrange(3)
        if slot not in texts:
            old = rng.choice([*texts.values(), [0]])
            text = [*old[: rng.choice([1, len(old), len(old)])], *(rng.randrange(9) for _ in range(rng.randrange(3)))]
            done = cache.admit(slot, [*text, 0])
            assert done == cache.length(slot) <= len(text), "admit counts entries it does not hold"
            texts[slot] = text[:done]
            shared += done > 0
            if state is not None:
                assert int(cache.state(state)[slot]) == state_of(texts[slot]), "a slot starts from another text's state"
        elif len(texts[slot]) > 40 or rng.random() < 0.15:
            cache.free([slot])
            del texts[slot]
            continue
        size = rng.randrange(1, 9)
        parents = [rng.randrange(-1, i) for i in range(size)]
        ids = [rng.randrange(9) for _ in range(size)]
        cache.reserve([slot], [size])
        segment = stage(cache, slot, ids, parents, store=store, state=state)
        path: list[int] = []
        node = rng.randrange(-1, size)  # -1: nothing is kept
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        if path and segment.visible is not None:
            visible = segment.visible[path[-1]].nonzero()[:, 0].tolist()
            assert visible == path, f"entry {path[-1]} attends to {visible}, its path is {path}"
        cache.commit([slot], [path])
        texts[slot] += [ids[i] for i in path]
        cache.check_integrity()
        for s, text in texts.items():
            _check_text(cache, s, text, store, state)
    assert shared > 5, "few texts began with the whole text of a slot"
    if state is not None:
        _check_order(make(1, 8), state)


def _check_text(cache: Cache, slot: int, text: list[int], store: str, state: str | None) -> None:
    assert cache.length(slot) == len(text), "the length is not the number of committed entries"
    held = cache.store(store)[slot, 0, : len(text), 0].long().tolist()
    assert held == text, "committed entries are not the text"
    if state is not None:
        assert int(cache.state(state)[slot]) == state_of(text), "a committed state is not that of its text"


def _check_before(cache: Cache) -> None:
    """Texts share entries if the same tokens stand in front of them, whether those have entries or not."""
    cache.admit(0, [1, 2, 3], before=[7])
    cache.reserve([0], [2])
    stage(cache, 0, [1, 2], [-1, 0])
    cache.commit([0], [[0, 1]])
    for before, shared in (([8], 0), ([], 0), ([7], 2)):
        assert cache.admit(1, [1, 2, 3], before=before) == shared, "entries were shared behind different tokens"
        cache.free([1])


def _check_order(cache: Cache, state: str) -> None:
    cache.admit(0, [1, 2])
    try:
        stage(cache, 0, [1, 2], [1, -1], state=state)
    except EngineError:
        return
    raise AssertionError("a pass whose child stands before its parent is taken")
