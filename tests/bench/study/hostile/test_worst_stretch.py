"""The worst stretch is found where it is, and no single slow round makes one."""

import random
from typing import Any

import pytest

from draftwood.bench.study.hostile.worst_stretch import Decoded, MedianCosts, medians, slowest, worst_stretch
from draftwood.bench.trace.records import RoundRecord, SequenceRecord
from draftwood.core.verdict import Times


def decoded(
    score: float, rest: float = 0.1, *, tokens: int = 1, passes: int = 0, emitted: int = 1, faulty: bool = False
) -> Decoded:
    """A round with these seconds."""
    times = Times({"score": score, "propose": rest}, tokens=tokens, draft_nodes=tokens - 1, draft_passes=passes)
    sequence = SequenceRecord(0, 9, [0] * (tokens - 1), [], [], [], [], [0] * emitted, emitted)
    return Decoded(RoundRecord(times, (sequence,)), faulty)


PLAIN = [decoded(0.9) for _ in range(60)]
DRAFT: dict[str, Any] = {"score": 1.7, "rest": 0.3, "tokens": 4, "passes": 3}


def test_rounds_that_are_plain_decoding_s_are_as_fast_anywhere() -> None:
    found = worst_stretch(PLAIN, PLAIN)
    assert found is not None and found.ratio == pytest.approx(1.0) and found.rounds > 50


def test_a_stretch_of_rejected_drafts_is_found_where_it_is() -> None:
    bad = [decoded(**DRAFT) for _ in range(60)]
    good = [decoded(**DRAFT, emitted=4) for _ in range(60)]
    found = worst_stretch(good + bad + good, PLAIN)
    assert found is not None and found.ratio == pytest.approx(0.5)
    assert 60 <= found.first <= found.first + found.rounds <= 120


def test_fifty_rounds_are_no_stretch_and_fifty_one_are() -> None:
    assert worst_stretch(PLAIN[:50], PLAIN) is None and worst_stretch([], PLAIN) is None
    found = worst_stretch(PLAIN[:51], PLAIN)
    assert found is not None and (found.first, found.rounds) == (0, 51)


def test_a_single_slow_round_is_counted_with_the_median_of_its_kind() -> None:
    noisy = [*PLAIN[:30], decoded(90.0), decoded(90.0, tokens=2), *PLAIN[:30]]
    found = worst_stretch(noisy, PLAIN)
    assert found is not None and found.ratio == pytest.approx(1.0)


def test_a_machine_that_slows_both_methods_down_changes_nothing() -> None:
    def run(faults: bool) -> list[Decoded]:
        return PLAIN[:40] + [decoded(2.7, 0.3, faulty=faults) for _ in range(80)]

    found = worst_stretch(run(True), run(True))
    assert found is not None and found.ratio == pytest.approx(1.0)
    twin = worst_stretch(run(False)[:80], run(False))  # rounds of both machines under one median
    assert twin is not None and twin.ratio != pytest.approx(1.0)


def test_kinds_of_few_rounds_share_a_median() -> None:
    assert medians({1: [1.0] * 5, 2: [9.0], 3: [2.0] * 5, 8: [50.0]}) == {1: 1.0, 2: 2.0, 3: 2.0, 8: 2.0}
    assert medians({4: [7.0, 9.0]}) == {4: 8.0} and medians({}) == {}


def test_plain_rounds_have_a_cost_only_where_there_are_some() -> None:
    assert MedianCosts(PLAIN).plain(False) == pytest.approx(1.0) and MedianCosts(PLAIN).plain(True) is None
    assert MedianCosts([decoded(**DRAFT)]).plain(False) is None


@pytest.mark.parametrize("seed", range(5))
def test_no_stretch_of_any_length_is_worse(seed: int) -> None:
    rng, least = random.Random(seed), 7
    worth, cost = ([rng.choice((0.5, 1.0, 3.0)) for _ in range(40)] for _ in range(2))
    every = [(i, j) for i in range(40) for j in range(i + least, 41)]
    found = slowest(worth, cost, least)
    assert found is not None
    assert found.ratio == pytest.approx(min(sum(worth[i:j]) / sum(cost[i:j]) for i, j in every))
    own = slice(found.first, found.first + found.rounds)
    assert sum(worth[own]) / sum(cost[own]) == pytest.approx(found.ratio)
