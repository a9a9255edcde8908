"""Means, ratios of means with intervals, percentiles: the arithmetic of a comparison, and nothing about what is compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A over b, from `pairs` pairs; `low` and `high` bound 95 % of the bootstrap, None below two pairs."""

    value: float
    low: float | None
    high: float | None
    pairs: int


def ratio_of_means(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> Ratio | None:
    """How many times b's mean a's mean is. Question i is a[i] and b[i] in every resample: paired, drawn with replacement."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values make no pairs")
    if not a or not sum(b):
        return None
    above, below = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    value = float(above.mean() / below.mean())
    if len(a) < 2:
        return Ratio(value, None, None, len(a))
    drawn = np.random.default_rng(seed).integers(0, len(a), size=(resamples, len(a)))
    ratios = above[drawn].mean(1) / below[drawn].mean(1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return Ratio(value, float(low), float(high), len(a))


def ratio_of_pairs(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> Ratio | None:
    """The median of a[i] / b[i], for pairs measured one after the other: a slow moment is in both, or is an outlier."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} values make no pairs")
    if not a or not all(b):
        return None
    ratios = np.asarray(a, dtype=float) / np.asarray(b, dtype=float)
    value = float(np.median(ratios))
    if len(a) < 2:
        return Ratio(value, None, None, len(a))
    drawn = np.random.default_rng(seed).integers(0, len(a), size=(resamples, len(a)))
    low, high = np.percentile(np.median(ratios[drawn], axis=1), (2.5, 97.5))
    return Ratio(value, float(low), float(high), len(a))


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def percentile(values: Sequence[float], q: float) -> float | None:
    """With linear interpolation; None of nothing."""
    return float(np.percentile(values, q)) if len(values) else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean; `low` and `high` bound 95 % of the bootstrap over groups, None below two groups."""

    value: float
    low: float | None
    high: float | None


def mean_by_group(
    values: Sequence[float], groups: Sequence[int], *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """The mean of all values. Values of one group resemble each other, so whole groups are drawn with replacement."""
    if len(values) != len(groups) or not values:
        raise ValueError(f"{len(values)} values in {len(groups)} groups have no mean")
    _, place = np.unique(np.asarray(groups), return_inverse=True)
    sums, counts = np.bincount(place, weights=np.asarray(values, dtype=float)), np.bincount(place)
    value = float(sums.sum() / counts.sum())
    if len(counts) < 2:
        return Estimate(value, None, None)
    drawn = np.random.default_rng(seed).integers(0, len(counts), size=(resamples, len(counts)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), (2.5, 97.5))
    return Estimate(value, float(low), float(high))
