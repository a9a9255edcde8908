"""Is a model batch-invariant? The same tokens in many passes: alone, in chunks, with other texts, in trees; at every tap.

A token after the same text must have the same bits, whatever else is in its pass. The reference is the token alone.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.core.forward import FINAL, ForwardInput
from draftwood.core.protocols import Model

SIZES = (1, 2, 5, 16, 64)
_SLOTS = 3
_LOGITS = "logits"

Computed = dict[int | str, Tensor]  # by tap


def batch_invariance_faults(
    model: Model, *, seed: int = 0, sizes: Sequence[int] = SIZES, length: int = 70, trees: int = 50
) -> Iterator[str]:
    """What differs, one line per pass, at the first tap and token that do; nothing for a batch-invariant model."""
    rng = random.Random(seed)
    text = _words(model, rng, length)
    alone = _alone(model, text)
    for size in sizes:
        pieces = [range(i, min(i + size, length)) for i in range(0, length, size)]
        yield from _first(f"chunks of {size}", alone, _in_chunks(model, text, pieces))
    for _ in range(4):
        cuts = sorted({0, length, *rng.sample(range(1, length), rng.randint(1, 8))})
        pieces = [range(a, b) for a, b in pairwise(cuts)]
        yield from _first(f"chunks at {cuts[1:-1]}", alone, _in_chunks(model, text, pieces))
    for slot in range(_SLOTS):
        said = _with_neighbours(model, rng, text, slot, max(sizes))
        yield from _first(f"slot {slot} with other texts", alone, said)
    for number in range(trees):
        tree = _Tree.grown(model, rng, text, rng.choice([s for s in sizes if s > 1]))
        right = tree.alone(model, text)
        shown = f"tree {number} of {len(tree.ids)} nodes behind {tree.done}"
        yield from _first(shown, right, tree.at_once(model, rng, text))


def _first(what: str, right: Sequence[Computed], said: Sequence[Computed]) -> Iterator[str]:
    """The first tap that differs, and the first token of it."""
    assert len(right) == len(said)
    for tap in right[0]:
        for i, (a, b) in enumerate(zip(right, said, strict=True)):
            if not _same_bits(a[tap], b[tap]):
                gap = float((a[tap].double() - b[tap].double()).abs().max())
                yield f"{what}: token {i} differs first at {'' if tap == _LOGITS else 'tap '}{tap}, by {gap:.1e}"
                return


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Also where they are not numbers."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _words(model: Model, rng: random.Random, size: int) -> list[int]:
    return [rng.randrange(model.info.vocab_size) for _ in range(size)]


def _cache(model: Model) -> DenseCache:
    cache = DenseCache(model.cache_specs, slots=_SLOTS, capacity=min(model.info.max_positions, 256))
    for slot in range(_SLOTS):
        cache.admit(slot, [])
    return cache


def _run(model: Model, cache: DenseCache, *parts: ForwardInput) -> list[Computed]:
    """All parts in one pass; what was computed for their tokens, in order."""
    columns: dict[str, Any] = {
        f: torch.cat([getattr(p, f) for p in parts]) for f in ("ids", "slots", "positions", "entries", "parents")
    }
    taps = frozenset({FINAL, *range(model.info.num_layers + 1)})
    x = ForwardInput(**columns, want=torch.arange(len(columns["ids"])))
    output = model.forward(x, cache, taps=taps)
    order = [*range(model.info.num_layers + 1), FINAL]
    return [{**{tap: output.features[tap][i] for tap in order}, _LOGITS: output.logits[i]} for i in range(x.size)]


def _chain(ids: Sequence[int], done: int, slot: int = 0) -> ForwardInput:
    at = torch.arange(len(ids))
    return ForwardInput(torch.tensor(ids), torch.full_like(at, slot), done + at, at, at - 1, at)


def _in_chunks(model: Model, text: Sequence[int], pieces: Sequence[range]) -> list[Computed]:
    cache = _cache(model)
    said: list[Computed] = []
    for piece in pieces:
        said += _run(model, cache, _chain(text[piece.start : piece.stop], piece.start))
        cache.commit([0], [list(range(len(piece)))])
    return said


def _alone(model: Model, text: Sequence[int]) -> list[Computed]:
    return _in_chunks(model, text, [range(i, i + 1) for i in range(len(text))])


def _with_neighbours(model: Model, rng: random.Random, text: Sequence[int], slot: int, most: int) -> list[Computed]:
    """Random chunks in one slot, while the others run texts of their own, and padding stands anywhere."""
    cache = _cache(model)
    said: list[Computed] = []
    while len(said) < len(text):
        parts: list[ForwardInput] = []
        at = size = 0
        for other in rng.sample([-1, *range(_SLOTS)], _SLOTS + 1):
            if other == slot:
                at, size = sum(p.size for p in parts), min(rng.randint(1, most), len(text) - len(said))
                parts.append(_chain(text[len(said) : len(said) + size], len(said), slot))
            elif rng.random() < 0.7:
                done = 0 if other < 0 else cache.length(other)
                parts.append(_chain(_words(model, rng, rng.randint(1, 4)), done, other))
        found = _run(model, cache, *parts)
        said += found[at : at + size]
        for part in parts:
            owner = int(part.slots[0])
            if owner >= 0:
                cache.commit([owner], [list(range(part.size))])
    return said


@dataclass(frozen=True, slots=True)
class _Tree:
    """Nodes behind the first `done` tokens of a text; a node's number is its staged entry."""

    done: int
    ids: list[int]
    parents: list[int]
    depths: list[int]

    @classmethod
    def grown(cls, model: Model, rng: random.Random, text: Sequence[int], most: int) -> "_Tree":
        size = rng.randint(2, most)
        parents = [-1, *(rng.randrange(max(0, i - 6), i) for i in range(1, size))]
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return cls(rng.randrange(len(text)), _words(model, rng, size), parents, depths)

    def tokens(self, nodes: Sequence[int], entries: Sequence[int], parents: Sequence[int]) -> ForwardInput:
        at = torch.tensor([self.done + self.depths[n] for n in nodes])
        ids = torch.tensor([self.ids[n] for n in nodes])
        return ForwardInput(ids, torch.zeros_like(at), at, torch.tensor(entries), torch.tensor(parents), at[:0])

    def alone(self, model: Model, text: Sequence[int]) -> list[Computed]:
        """One node a pass, depth first, each at the entry of its depth: what it sees is a chain."""
        cache = self._begin(model, text)
        found: dict[int, Computed] = {}
        waiting = [0]
        while waiting:
            node = waiting.pop()
            depth = self.depths[node]
            (found[node],) = _run(model, cache, self.tokens([node], [depth], [depth - 1]))
            waiting += [n for n, parent in enumerate(self.parents) if parent == node]
        return [found[n] for n in range(len(self.ids))]

    def at_once(self, model: Model, rng: random.Random, text: Sequence[int]) -> list[Computed]:
        """The whole tree in one pass or in two, others another slot's chain or not."""
        cache = self._begin(model, text)
        cut = rng.choice([0, rng.randrange(len(self.ids))])
        said: list[Computed] = []
        for nodes in (range(cut), range(cut, len(self.ids))):
            if nodes:
                mine = self.tokens(nodes, nodes, [self.parents[n] for n in nodes])
                others = [_chain(_words(model, rng, rng.randint(1, 5)), 0, 1)] if rng.random() < 0.5 else []
                found = _run(model, cache, *others, mine)
                said += found[-len(nodes) :]
        return said

    def _begin(self, model: Model, text: Sequence[int]) -> DenseCache:
        cache = _cache(model)
        if self.done:
            _run(model, cache, _chain(text[: self.done], 0))
            cache.commit([0], [list(range(self.done))])
        return cache
