"""The worst stretch of a run: the consecutive decoding rounds with the least speed against plain decoding.

Single rounds are noisy, so every round counts with a median: the target pass with that of passes of as many tokens, the rest
of the round with that of rounds of as many draft passes. Rounds before and after a fault have medians of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from draftwood.bench.trace.records import RoundRecord
from draftwood.core.verdict import Times

LEAST = 5  # rounds that a median is of; kinds with fewer share one with the next larger kind


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoding round of one sequence. `faulty`: a fault was there."""

    record: RoundRecord
    faulty: bool

    @property
    def times(self) -> Times:
        return self.record.times

    @property
    def drafts(self) -> bool:
        return bool(self.times.draft_nodes or self.times.draft_passes)


@dataclass(frozen=True, slots=True)
class Stretch:
    """`ratio`: speed over that of plain decoding; `first`: number of its first round, from 0."""

    ratio: float
    first: int
    rounds: int


class MedianCosts:
    """Seconds of rounds by their kind, from these rounds."""

    def __init__(self, rounds: Sequence[Decoded]) -> None:
        self._score: dict[bool, Mapping[int, float]] = {}
        self._rest: dict[bool, Mapping[int, float]] = {}
        for faulty in {each.faulty for each in rounds}:
            score: dict[int, list[float]] = {}
            rest: dict[int, list[float]] = {}
            for each in (each for each in rounds if each.faulty == faulty):
                score.setdefault(each.times.tokens, []).append(each.times["score"])
                rest.setdefault(_effort(each), []).append(each.times.total - each.times["score"])
            self._score[faulty], self._rest[faulty] = medians(score), medians(rest)

    def seconds(self, each: Decoded) -> float:
        return self._score[each.faulty][each.times.tokens] + self._rest[each.faulty][_effort(each)]

    def plain(self, faulty: bool) -> float | None:
        """Of a round that drafts nothing; None if there was none."""
        score, rest = self._score.get(faulty, {}).get(1), self._rest.get(faulty, {}).get(-1)
        return None if score is None or rest is None else score + rest


def _effort(each: Decoded) -> int:
    """Draft passes; 0: drafts without a model, -1: none."""
    return each.times.draft_passes if each.drafts else -1


def medians(samples: Mapping[int, Sequence[float]], least: int = LEAST) -> dict[int, float]:
    """Of each kind. A kind with fewer samples than `least` is put together with the next ones, the last with those before,
    so that a single slow moment is no kind of its own."""
    groups: list[tuple[list[int], list[float]]] = []
    for kind in sorted(samples):
        if groups and len(groups[-1][1]) < least:
            groups[-1][0].append(kind)
            groups[-1][1].extend(samples[kind])
        else:
            groups.append(([kind], list(samples[kind])))
    if len(groups) > 1 and len(groups[-1][1]) < least:
        kinds, found = groups.pop()
        groups[-1][0].extend(kinds)
        groups[-1][1].extend(found)
    return {kind: median(found) for kinds, found in groups for kind in kinds}


def worst_stretch(rounds: Sequence[Decoded], plain: Sequence[Decoded], longer_than: int = 50) -> Stretch | None:
    """Of all stretches with more rounds than that; None if there is none. `plain`: plain decoding's rounds."""
    own, other = MedianCosts(rounds), MedianCosts(plain)
    worth: list[float] = []
    for each in rounds:
        one = other.plain(each.faulty)
        if one is None:
            return None
        worth.append(each.record.emitted * one)
    return slowest(worth, [own.seconds(each) for each in rounds], longer_than + 1)


def slowest(worth: Sequence[float], cost: Sequence[float], least: int) -> Stretch | None:
    """The stretch of at least `least` rounds with the least worth for its cost. One of twice as many has a half that is
    no better, so longer ones need not be looked at."""
    gained, spent = (np.concatenate([[0.0], np.cumsum(x)]) for x in (worth, cost))
    found: Stretch | None = None
    for size in range(least, min(2 * least, len(worth) + 1)):
        ratios = (gained[size:] - gained[:-size]) / (spent[size:] - spent[:-size])
        at = int(ratios.argmin())
        if found is None or ratios[at] < found.ratio:
            found = Stretch(float(ratios[at]), at, size)
    return found
