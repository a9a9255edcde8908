"""Checks for caches with per-slot stores: a slot's state is that of its text, whatever was staged, cut, shared or freed."""

import random
from collections.abc import Callable, Sequence

import torch

from draftwood.core.forward import ForwardInput
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


def stage(cache: Cache, name: str, slot: int, ids: list[int], parents: list[int]) -> None:
    """One pass over one slot, as a recurrent layer makes it: the parent's state in, the own state out."""
    index = torch.arange(len(ids))
    slots, none = torch.full_like(index, slot), index[:0]
    cache.stage(ForwardInput(torch.tensor(ids), slots, index, index, torch.tensor(parents), none))
    committed, staged = cache.state(name)[slot, 0], cache.staged_states(name)[slot, :, 0]
    for entry, (token, parent) in enumerate(zip(ids, parents, strict=True)):
        before = committed[0] if parent < 0 else staged[parent, 0]
        staged[entry, 0] = after(int(before), token)


def check_states(make: Callable[[int, int], Cache], name: str) -> None:
    """`make(slots, capacity)`: a cache whose store `name` holds one number per slot. Tokens are few, so texts repeat and
    some of them begin with the whole text of a slot."""
    rng = random.Random(5)
    cache = make(3, 64)
    texts: dict[int, list[int]] = {}
    shared = 0
    for _ in range(300):
        slot = rng.randrange(3)
        if slot not in texts:
            old = rng.choice([*texts.values(), [0]])
            text = [*old[: rng.choice([1, len(old), len(old)])], *(rng.randrange(3) for _ in range(rng.randrange(3)))]
            done = cache.admit(slot, [*text, 0])
            texts[slot] = text[:done]
            shared += done > 0
            assert int(cache.state(name)[slot]) == state_of(texts[slot]), "a slot starts from another text's state"
        elif len(texts[slot]) > 40 or rng.random() < 0.15:
            cache.free([slot])
            del texts[slot]
            continue
        size = rng.randrange(1, 9)
        parents = [rng.randrange(-1, i) for i in range(size)]
        ids = [rng.randrange(3) for _ in range(size)]
        cache.reserve([slot], [size])
        stage(cache, name, slot, ids, parents)
        path: list[int] = []
        node = rng.randrange(-1, size)  # -1: nothing is kept
        while node >= 0:
            path.insert(0, node)
            node = parents[node]
        cache.commit([slot], [path])
        texts[slot] += [ids[i] for i in path]
        cache.check_integrity()
        for s, text in texts.items():
            assert int(cache.state(name)[s]) == state_of(text), "a committed state is not that of its text"
    assert shared > 5, "hardly a text began with the whole text of a slot"
    _check_order(make(1, 8), name)


def _check_order(cache: Cache, name: str) -> None:
    cache.admit(0, [1, 2])
    try:
        stage(cache, name, 0, [1, 2], [1, -1])
    except EngineError:
        return
    raise AssertionError("a pass whose child stands before its parent is taken")
