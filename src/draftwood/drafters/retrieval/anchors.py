"""Anchors: where a text may go on in another one, by the longest agreement of what came last."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer


def anchors(text: Integer[np.ndarray, "n"], tail: Sequence[int], cursor: int, most: int) -> list[tuple[int, int]]:
    """(agreement, where the continuation starts) of at most `most` places of `text` that end as `tail` does.

    The longest agreement comes first. Of equal ones the nearest at or after the cursor comes first, then the nearest before
    it. One comparison with the whole text, and a few with what agrees so far: microseconds for thousands of tokens.
    """
    if not tail:
        return []
    levels: list[np.ndarray] = []
    ends = np.flatnonzero(text == tail[-1]) + 1
    while ends.size:
        levels.append(ends)
        n = len(levels)  # tokens that agree
        if n == len(tail):
            break
        ends = ends[ends > n]
        ends = ends[text[ends - n - 1] == tail[-n - 1]]
    found: dict[int, int] = {}
    for n in range(len(levels), 0, -1):
        ends = levels[n - 1]
        ahead = ends - cursor
        order = np.argsort(np.where(ahead >= 0, ahead, text.size - ahead), kind="stable")
        for end in ends[order[: 2 * most]].tolist():
            found.setdefault(end, n)
            if len(found) == most:
                return [(n, end) for end, n in found.items()]
    return [(n, end) for end, n in found.items()]
