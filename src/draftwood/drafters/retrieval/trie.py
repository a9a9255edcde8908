"""Continuations as one tree: a beginning that several share is one node, as heavy as they are together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Trie:
    """Node i has number i + 1, the text itself is 0. Parents stand before their children."""

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    weights: list[float] = field(default_factory=list[float])
    levels: list[int] = field(default_factory=list[int])  # 1 for the first tokens


def trie_of(rows: Iterable[Sequence[int]], weights: Iterable[float], separator: int) -> Trie:
    """The tree of these continuations, each of which ends before its first separator."""
    found, below = Trie(), dict[tuple[int, int], int]()
    for row, weight in zip(rows, weights, strict=True):
        here = 0
        for level, token in enumerate(row, 1):
            if token >= separator:
                break
            child = below.setdefault((here, token), len(found.tokens) + 1)
            if child > len(found.tokens):
                found.tokens.append(token)
                found.parents.append(here)
                found.weights.append(0)
                found.levels.append(level)
            found.weights[child - 1] += weight
            here = child
    return found
