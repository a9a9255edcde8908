"""What followed the end of a text in a datastore: the longest suffix that occurs, its continuations, the frequent ones.

Suffixes are sorted, so all occurrences of a pattern are neighbours in the suffix array, two binary searches find them, and
equal continuations are neighbours too.

    suffix array   ... | a b c d | a b c d | a b c e | a b x y | ...      pattern a b
    weights                 c 3, c d 2, c e 1, x 1, ...
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from draftwood.drafters.retrieval.stores.store import Chunk, Store
from draftwood.drafters.retrieval.trie import trie_of

FEW = 48  # occurrences up to which plain Python is faster than numpy, whose calls cost as much for few numbers


class Range(NamedTuple):
    """Places [start, stop) of a chunk's suffix array."""

    chunk: Chunk
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Match:
    """The last `span` tokens of a text occur in these ranges; span 0: nowhere."""

    span: int
    ranges: tuple[Range, ...] = ()

    @property
    def count(self) -> int:
        return sum(stop - start for _, start, stop in self.ranges)


class Node(NamedTuple):
    """A continuation's last token; `parent` counts nodes from 1, 0 being the text itself. `weight`: occurrences."""

    token: int
    parent: int
    weight: int


def longest_match(store: Store, text: Sequence[int], least: int, most: int) -> Match:
    """All occurrences of the longest suffix of `text` that occurs anywhere, of `least` to `most` tokens."""
    tail = list(text[-most:])
    unknown = next((i for i, t in enumerate(reversed(tail)) if t >= store.info.separator), len(tail))
    longest, width = min(most, unknown), store.info.width
    if longest < least:
        return Match(0)
    pattern = np.array(tail[-longest:], dtype=f">u{width}").tobytes()

    span, found = least, list[Chunk]()
    for chunk in store.chunks:
        own = _longest(lambda n, chunk=chunk: _occurs(chunk, pattern[-n * width :]), span, longest)
        if own > span:
            span, found = own, []
        if own == span:
            found.append(chunk)
    if not found:
        return Match(0)
    return Match(span, tuple(range_of(chunk, pattern[-span * width :]) for chunk in found))


def _longest(occurs: Callable[[int], bool], least: int, most: int) -> int:
    """The largest n from `least` to `most` that occurs, 0 if none does. A part of what occurs also occurs."""
    if not occurs(least):
        return 0
    while least < most:
        middle = (least + most + 1) // 2
        if occurs(middle):
            least = middle
        else:
            most = middle - 1
    return least


def _occurs(chunk: Chunk, pattern: bytes) -> bool:
    size = len(pattern)
    at = bisect_left(chunk.suffixes, pattern, key=lambda suffix: chunk.key(suffix, size))
    return at < len(chunk.suffixes) and chunk.key(chunk.suffixes[at], size) == pattern


def range_of(chunk: Chunk, pattern: bytes, start: int = 0, stop: int | None = None) -> Range:
    """Where the suffixes that begin with these bytes lie, between two places of the suffix array."""

    def key(suffix: int) -> bytes:
        return chunk.key(suffix, len(pattern))

    first = bisect_left(chunk.suffixes, pattern, lo=start, hi=stop, key=key)
    return Range(chunk, first, bisect_right(chunk.suffixes, pattern, lo=first, hi=stop, key=key))


def occurrences(store: Store, match: Match, most: int) -> Integer[np.ndarray, "R"]:
    """Where the tokens after the pattern begin, in `store.tokens`. Of more than `most` occurrences, `most` at equal
    distances: the first ones would all go on alike."""
    count = match.count
    chosen = np.arange(count) if count <= most else np.arange(most) * count // most
    found: list[np.ndarray] = []
    for chunk, start, stop in match.ranges:
        own, chosen = chosen[chosen < stop - start], chosen[chosen >= stop - start] - (stop - start)
        places = chunk.order[start + own].astype(np.int64)
        if len(own) and int(places.max()) >= len(chunk.order):
            raise store.damaged("a suffix lies outside its chunk")
        found.append(places + chunk.first)
    return np.concatenate(found) + match.span


def heaviest(store: Store, at: Integer[np.ndarray, "R"], depth: int, nodes: int) -> list[Node]:
    """The `nodes` heaviest beginnings, of at most `depth` tokens, of what stands at these places: by weight, then the
    shorter, then the smaller token ids. A beginning is at least as heavy as what it begins and shorter, so parents are
    kept, and stand before their children.

    """
    return _few(store, at, depth, nodes) if len(at) <= FEW else _many(store, at, depth, nodes)


def _few(store: Store, at: Integer[np.ndarray, "R"], depth: int, nodes: int) -> list[Node]:
    """One continuation after the other."""
    rows: list[list[int]] = store.tokens.take(at[:, None] + np.arange(depth), mode="clip").tolist()
    # Sorted, so that equally long beginnings are met in the order of their tokens.
    found = trie_of(sorted(rows), [1] * len(rows), store.info.separator)
    order = sorted(range(len(found.tokens)), key=lambda i: (-found.weights[i], found.levels[i]))[:nodes]
    number = {0: 0, **{i + 1: n for n, i in enumerate(order, 1)}}
    return [Node(found.tokens[i], number[found.parents[i]], int(found.weights[i])) for i in order]


def _many(store: Store, at: Integer[np.ndarray, "R"], depth: int, nodes: int) -> list[Node]:
    """All continuations together, level by level: whoever is kept has a kept parent, so only places below the kept ones are
    read on."""
    token, parent, weight = (np.zeros(0, np.int64) for _ in range(3))
    label, before = np.zeros(len(at), np.int64), 0  # of each place, the kept beginning it went through, in token order
    for _ in range(depth):
        here = store.tokens.take(at, mode="clip").astype(np.int64)
        goes_on = here < store.info.separator
        at, key = at[goes_on], label[goes_on] << 32 | here[goes_on]
        if not len(key):
            break
        first = np.concatenate(([0], np.flatnonzero(key[1:] != key[:-1]) + 1))
        child, runs = key[first], np.diff(first, append=len(key))  # neighbours that go on alike
        run, heavy = np.arange(len(child)), runs
        if not (child[1:] > child[:-1]).all():  # several chunks, each in order: the same ones may come again
            child, run = np.unique(child, return_inverse=True)
            heavy = np.bincount(run, weights=runs).astype(np.int64)
        kept = _first_heaviest(heavy, nodes, weight)
        number = np.full(len(child), -1)
        number[kept] = np.arange(len(kept))
        label = np.repeat(number[run], runs)
        at, label = at[label >= 0] + 1, label[label >= 0]
        start, before = before, len(token)
        token = np.concatenate((token, child[kept] & 0xFFFFFFFF))
        parent = np.concatenate((parent, (child[kept] >> 32) + start if before else np.full(len(kept), -1)))
        weight = np.concatenate((weight, heavy[kept]))
    # Shorter ones stand before longer ones here and equally long ones in the order of their tokens: ties keep that order.
    order = np.argsort(-weight, kind="stable")[:nodes]
    number = np.zeros(len(token) + 1, np.int64)  # the last is that of the text itself, whose place is -1
    number[order] = np.arange(1, len(order) + 1)
    columns = (token[order].tolist(), number[parent[order]].tolist(), weight[order].tolist())
    return [Node(*each) for each in zip(*columns, strict=True)]


def _first_heaviest(
    weight: Integer[np.ndarray, "G"], most: int, shorter: Integer[np.ndarray, "S"]
) -> Integer[np.ndarray, "K"]:
    """Places of the `most` heaviest, the first ones among equals, in rising order; none that `most` of the shorter ones
    outweigh or equal."""
    floor = np.partition(shorter, -most)[-most] if len(shorter) >= most else 0
    if len(weight) > most:
        least = np.partition(weight, -most)[-most]
        above = np.flatnonzero(weight > least)
        equal = np.flatnonzero(weight == least)[: most - len(above)]
        places = np.sort(np.concatenate((above, equal)))
    else:
        places = np.arange(len(weight))
    return places[weight[places] > floor]
