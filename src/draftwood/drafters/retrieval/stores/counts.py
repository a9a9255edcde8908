"""Counts of n-grams in a store: how often a context occurs, and how often each of some tokens follows it.

Two binary searches find a context in the suffix array, two more inside that range each token behind it.
"""

from collections.abc import Sequence

import numpy as np

from draftwood.drafters.retrieval.stores.search import FEW, range_of
from draftwood.drafters.retrieval.stores.store import Store


def followers(store: Store, context: Sequence[int], tokens: Sequence[int]) -> tuple[int, list[int]]:
    """Occurrences of `context`, those at the end of a document included, and of the context with each token behind it."""
    total, found = 0, [0] * len(tokens)
    if not context or max(context) >= store.info.separator:
        return total, found
    store.need_whole()
    width, span = store.info.width, len(context)
    pattern = np.array(context, dtype=f">u{width}").tobytes()
    for chunk in store.chunks:
        _, start, stop = range_of(chunk, pattern)
        total += stop - start
        if stop - start <= FEW:
            after = store.tokens.take(
                chunk.order[start:stop].astype(np.int64) + chunk.first + span, mode="clip"
            ).tolist()
            found = [count + after.count(token) for count, token in zip(found, tokens, strict=True)]
            continue
        for i, token in enumerate(tokens):
            if token < store.info.separator:
                _, first, last = range_of(chunk, pattern + token.to_bytes(width, "big"), start, stop)
                found[i] += last - first
    return total, found
