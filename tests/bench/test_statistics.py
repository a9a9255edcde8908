import numpy as np
import pytest

from draftwood.bench.statistics import mean, mean_by_group, percentile, ratio_of_means, ratio_of_pairs


def test_a_ratio_of_means_is_no_mean_of_ratios():
    made = ratio_of_means([10.0, 30.0], [10.0, 10.0])
    assert made is not None and made.value == 2.0 and made.pairs == 2
    made = ratio_of_means([10.0, 100.0], [10.0, 50.0])
    assert made is not None and made.value == pytest.approx(110 / 60)


def test_the_interval_of_two_pairs_is_what_their_resamples_say():
    # Of four equally likely resamples, ratios are 1, 2, 2 and 3: a fortieth of the mass is at either end.
    made = ratio_of_means([10.0, 30.0], [10.0, 10.0])
    assert made is not None and (made.low, made.high) == (1.0, 3.0)


def test_pairs_stay_together():
    # Question by question a is twice b, however different the questions are: nothing to be unsure about.
    slow_and_fast = [1.0, 5.0, 40.0, 200.0]
    made = ratio_of_means([2 * x for x in slow_and_fast], slow_and_fast)
    assert made is not None and made.low == pytest.approx(2) and made.high == pytest.approx(2)
    torn = ratio_of_means([2 * x for x in reversed(slow_and_fast)], slow_and_fast)
    assert torn is not None and torn.low is not None and torn.high is not None and torn.high / torn.low > 10


def test_the_same_seed_gives_the_same_interval():
    noise = np.random.default_rng(0)
    a, b = noise.uniform(1, 2, 30).tolist(), noise.uniform(1, 2, 30).tolist()
    assert ratio_of_means(a, b, seed=1) == ratio_of_means(a, b, seed=1) != ratio_of_means(a, b, seed=2)


def test_an_interval_of_a_normal_mean_is_as_wide_as_theory_says():
    a = np.random.default_rng(0).normal(10, 1, 400)
    made = ratio_of_means(a.tolist(), [1.0] * 400)
    assert made is not None and made.low is not None and made.high is not None
    assert made.high - made.low == pytest.approx(2 * 1.96 * a.std() / 20, rel=0.1)


def test_a_slow_moment_is_in_both_of_a_pair_or_is_one_pair_of_many():
    noise = np.random.default_rng(0).uniform(1, 10, 40)
    steady = ratio_of_pairs((3 * noise).tolist(), noise.tolist())
    assert steady is not None and (steady.value, steady.low, steady.high) == pytest.approx((3, 3, 3))
    hit = ratio_of_pairs([3.0] * 39 + [3000.0], [1.0] * 40)
    assert hit is not None and (hit.value, hit.low, hit.high, hit.pairs) == (3, 3, 3, 40)


def test_an_interval_of_a_median_is_as_wide_as_theory_says():
    a = np.random.default_rng(0).normal(10, 1, 400)
    made = ratio_of_pairs(a.tolist(), [1.0] * 400)
    assert made is not None and made.low is not None and made.high is not None and made.low < made.value < made.high
    assert made.high - made.low == pytest.approx(2 * 1.96 * 1.2533 / 20, rel=0.3)


def test_pairs_that_have_no_ratio_have_none():
    assert ratio_of_pairs([], []) is None and ratio_of_pairs([1.0, 1.0], [1.0, 0.0]) is None
    alone = ratio_of_pairs([3.0], [2.0])
    assert alone is not None and (alone.value, alone.low) == (1.5, None)
    with pytest.raises(ValueError, match="no pairs"):
        ratio_of_pairs([1.0], [])


def test_too_little_has_no_interval():
    assert ratio_of_means([], []) is None
    assert ratio_of_means([1.0], [0.0]) is None
    alone = ratio_of_means([3.0], [2.0])
    assert alone is not None and (alone.value, alone.low, alone.high) == (1.5, None, None)
    with pytest.raises(ValueError, match="no pairs"):
        ratio_of_means([1.0], [])


def test_means_and_percentiles_of_nothing_are_nothing():
    assert mean([]) is None and percentile([], 50) is None
    assert mean([1, 2, 6]) == 3 and percentile([1, 2, 6], 50) == 2


def test_values_of_one_group_are_drawn_together():
    even = mean_by_group([0.0, 1.0] * 50, [0, 1] * 50)
    assert even.value == 0.5 and even.low == 0.0 and even.high == 1.0  # two groups, all alike within
    alone = mean_by_group([float(i % 2) for i in range(100)], list(range(100)))
    assert alone.value == 0.5 and alone.low is not None and 0.3 < alone.low < alone.value
    one = mean_by_group([1.0, 2.0], [7, 7])
    assert (one.value, one.low, one.high) == (1.5, None, None)
    with pytest.raises(ValueError, match="no mean"):
        mean_by_group([], [])


def test_intervals_are_those_of_scipys_percentile_bootstrap():
    stats = pytest.importorskip("scipy.stats")
    noise = np.random.default_rng(1)
    a, b = noise.lognormal(0, 0.3, 60), noise.lognormal(0.3, 0.3, 60)
    ours = ratio_of_means(a.tolist(), b.tolist(), seed=3)
    theirs = stats.bootstrap(
        (a, b), lambda x, y, axis: x.mean(axis) / y.mean(axis), paired=True, vectorized=True,
        n_resamples=2000, method="percentile", random_state=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    assert ours is not None and (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=0.02)
