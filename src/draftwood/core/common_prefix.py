"""common_prefix: where two texts begin to differ."""

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with in common. Compares pieces that double in length while they agree: most texts
    differ within a few tokens."""
    size = min(len(a), len(b))
    low, step = 0, 8
    while low < size:
        here, there = list(a[low : low + step]), list(b[low : low + step])  # a list equals no tuple
        if here != there:
            return low + next((i for i, (x, y) in enumerate(zip(here, there, strict=False)) if x != y), size - low)
        low, step = low + step, 2 * step
    return size
