"""The keys nearest to a query, by inner product: a graph search by usearch, or a product with every key.

The graph finds nearly all of them in a fraction of the time. The product finds all; it is the fall-back where usearch is not
installed, and what tests compare the graph with.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float, Integer

CONNECTIVITY, WIDTH_BUILT, WIDTH_SEARCHED = 16, 128, 128  # edges of a key; candidates kept while building and searching
_BLOCK = 1 << 13  # keys multiplied, or added to a graph, at a time

log = logging.getLogger("draftwood")


class Neighbours(Protocol):
    def search(
        self, queries: Float[np.ndarray, "B D"], count: int
    ) -> tuple[Integer[np.ndarray, "B count"], Float[np.ndarray, "B count"]]:
        """Numbers of the nearest keys, nearest first, and their inner products; -1 where there are no more."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class EveryKey:
    """Multiplies every key."""

    keys: Float[np.ndarray, "K D"]

    def search(
        self, queries: Float[np.ndarray, "B D"], count: int
    ) -> tuple[Integer[np.ndarray, "B count"], Float[np.ndarray, "B count"]]:
        asked = queries.astype(np.float32).T
        blocks = range(0, len(self.keys), _BLOCK)
        products = [self.keys[at : at + _BLOCK].astype(np.float32) @ asked for at in blocks]
        near = np.nan_to_num(np.concatenate(products).T, nan=-1.0)  # [B, K]
        some = min(count, len(self.keys))
        # In the order of their numbers first, so that of equal ones the earlier comes first.
        best = np.sort(np.argpartition(-near, some - 1, axis=1)[:, :some], axis=1)
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(near, best, 1), axis=1, kind="stable"), 1)
        numbers, found = _nothing(len(queries), count)
        numbers[:, : best.shape[1]] = best
        found[:, : best.shape[1]] = np.take_along_axis(near, best, 1)
        return numbers, found


@dataclass(frozen=True, slots=True, eq=False)
class GraphSearch:
    """Walks a graph of `num_keys` keys that `graph_of` made. `index` reads it where it lies, without a copy, and does not
    keep it there: `graph` does."""

    index: Any
    num_keys: int
    graph: memoryview

    def search(
        self, queries: Float[np.ndarray, "B D"], count: int
    ) -> tuple[Integer[np.ndarray, "B count"], Float[np.ndarray, "B count"]]:
        numbers, near = _nothing(len(queries), count)
        for b, query in enumerate(queries):  # one by one: of a batch the library does not say alike how many it found
            found = self.index.search(query, count, threads=1)
            numbers[b, : len(found)], near[b, : len(found)] = found.keys, 1.0 - found.distances
        numbers[numbers >= self.num_keys] = -1
        return numbers, near


def _nothing(batch: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full((batch, count), -1, np.int64), np.full((batch, count), -1.0, np.float32)


def _library() -> Any:
    """usearch, or None where it is not installed."""
    try:
        import usearch
        import usearch.index
    except ImportError:
        return None
    return usearch


def graph_of(keys: Float[np.ndarray, "K D"], progress: Callable[[int, int], None]) -> tuple[bytes, str]:
    """A graph over the keys as bytes, and what made it. Both empty where usearch is not installed."""
    library = _library()
    if library is None:
        log.warning("usearch is not installed: the store has no graph, and every search multiplies all of its keys")
        return b"", ""
    index = library.index.Index(
        ndim=keys.shape[1], metric="ip", dtype="f16", connectivity=CONNECTIVITY, expansion_add=WIDTH_BUILT
    )
    for at in range(0, len(keys), _BLOCK):
        progress(at, len(keys))
        block = keys[at : at + _BLOCK]
        # One thread: several make another graph each time, in which up to one key in forty is never found.
        index.add(np.arange(at, at + len(block), dtype=np.uint64), block, threads=1)
    progress(len(keys), len(keys))
    return index.save(), f"usearch {library.__version__}"


def open_graph(graph: memoryview, keys: Float[np.ndarray, "K D"]) -> Neighbours:
    """A search of the graph that lies there. Its bytes must be those that were written: they are followed unchecked."""
    library = _library()
    if library is None:
        log.warning("usearch is not installed: every search multiplies all keys; `pip install draftwood[datastore]`")
        return EveryKey(keys)
    index = library.index.Index(ndim=keys.shape[1], metric="ip", dtype="f16", connectivity=CONNECTIVITY)
    try:
        index.view(graph)
    except (RuntimeError, ValueError) as error:
        log.warning(
            "usearch %s cannot read the graph (%s): every search multiplies all keys", library.__version__, error
        )
        return EveryKey(keys)
    if len(index) != len(keys):
        return EveryKey(keys)
    index.expansion_search = WIDTH_SEARCHED
    return GraphSearch(index, len(keys), graph)
