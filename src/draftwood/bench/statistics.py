"""Means, ratios and percentiles with bootstrap intervals. Knows nothing about what is compared.

The bootstrap is a few lines of numpy, because `draftwood eval` and all benchmarks need it and scipy is optional.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean; `low` and `high` bound 95 % of the bootstrap over groups, None below two groups."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A over b, from `pairs` pairs; `low` and `high` bound 95 % of the bootstrap, None below two pairs."""

    value: float
    low: float | None
    high: float | None
    pairs: int


def ratio_of_means(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Ratio | None:
    """The mean of a over the mean of b. Paired: a[i] and b[i] are drawn together, with replacement."""
    above, below = _pairs(a, b)
    if not len(below) or not below.sum():
        return None
    return Ratio(*_bootstrap(lambda i: above[i].mean(-1) / below[i].mean(-1), len(a), seed), len(a))


def ratio_of_pairs(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Ratio | None:
    """The median of a[i] / b[i], for pairs measured one after the other: a slow moment affects both, or is an outlier."""
    above, below = _pairs(a, b)
    if not len(below) or not below.all():
        return None
    ratios = above / below
    return Ratio(*_bootstrap(lambda i: np.median(ratios[i], axis=-1), len(a), seed), len(a))


def mean_by_group(values: Sequence[float], groups: Sequence[int], *, seed: int = 0) -> Estimate:
    """The mean of all values. Values of one group resemble each other, so whole groups are drawn with replacement."""
    if len(values) != len(groups) or not values:
        raise ValueError(f"{len(values)} values in {len(groups)} groups have no mean")
    _, place = np.unique(np.asarray(groups), return_inverse=True)
    sums, counts = np.bincount(place, weights=np.asarray(values, dtype=float)), np.bincount(place)
    return Estimate(*_bootstrap(lambda i: sums[i].sum(-1) / counts[i].sum(-1), len(counts), seed))


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def percentile(values: Sequence[float], q: float) -> float | None:
    """With linear interpolation; None if there are no values."""
    return float(np.percentile(values, q)) if len(values) else None


def _pairs(a: Sequence[float], b: Sequence[float]) -> tuple[Any, Any]:
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values make no pairs")
    return np.asarray(a, dtype=float), np.asarray(b, dtype=float)


def _bootstrap(statistic: Callable[[Any], Any], size: int, seed: int) -> tuple[float, float | None, float | None]:
    """The statistic of all `size` elements, and the ends of its 95 % percentile interval. It takes indices [..., size]."""
    value = float(statistic(np.arange(size)))
    if size < 2:
        return value, None, None
    drawn = np.random.default_rng(seed).integers(0, size, size=(RESAMPLES, size))
    low, high = np.percentile(statistic(drawn), (2.5, 97.5))
    return value, float(low), float(high)
