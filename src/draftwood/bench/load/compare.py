"""Schedulers on the same arrivals, several seeds of each trace."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp
from statistics import fmean

from draftwood.bench.load.arrivals import Answer, Arrival, Trace, arrivals
from draftwood.bench.load.simulate import Latencies, Machine, simulated
from draftwood.core.protocols import Scheduler
from draftwood.core.request import Request
from draftwood.engine.lengths import Errors
from draftwood.engine.scheduler import FirstCome
from draftwood.engine.shortest_first import ShortestFirst

FIRST = "first come"
Way = tuple[Callable[[Sequence[Arrival]], Scheduler], int]
"""How a scheduler is made for these arrivals, and its slots."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Means over seeds, in seconds; `ratio`: mean latency over that of first come, first served, `worst`: of the worst seed;
    `slowest`: of all seeds."""

    machine: str
    trace: str
    scheduler: str
    mean: float
    p99: float
    slowest: float
    ratio: float | None
    worst: float | None
    preempted: int
    length_error: float | None
    service_error: float | None
    busy: float


@dataclass(slots=True)
class Told:
    """What a good predictor of lengths would say: the true ones, off by a factor that is log-normal with this deviation."""

    tokens: Sequence[int]  # of each request, by number
    noise: float
    errors: Errors = field(default_factory=Errors)

    def remaining(self, request: Request) -> float:
        rng = random.Random(f"length of {request.id}")
        said = self.tokens[request.id] * exp(rng.gauss(0, self.noise))
        return max(said - len(request.output), 8.0)  # it goes on although it should have ended: soon, perhaps

    def learn(self, request: Request, expected: float) -> None:
        self.errors.add(expected, len(request.output))


def schedulers(slots: int, resident: int, noise: float) -> dict[str, Way]:
    """`noise`: of lengths that are told; without, they are those of answers before."""

    def told(coming: Sequence[Arrival]) -> Scheduler:
        return ShortestFirst(lengths=Told([each.tokens for each in coming], noise))

    def paused(coming: Sequence[Arrival]) -> Scheduler:
        return ShortestFirst(slots, lengths=Told([each.tokens for each in coming], noise))

    return {
        FIRST: (lambda coming: FirstCome(), slots),
        "shortest first": (lambda coming: ShortestFirst(), slots),
        f"shortest first, {resident} slots": (lambda coming: ShortestFirst(slots), resident),
        "shortest first, lengths told": (told, slots),
        f"shortest first, lengths told, {resident} slots": (paused, resident),
    }


def compare(
    name: str,
    machine: Machine,
    trace: Trace,
    answers: list[Answer],
    ways: Mapping[str, Way],
    slots: int,
    most: int,
    seeds: int,
) -> list[Compared]:
    coming = [arrivals(trace, answers, partial(machine.work, slots), most, seed) for seed in range(seeds)]
    found = {
        way: [simulated(make(each), machine, room, each)[0] for each in coming] for way, (make, room) in ways.items()
    }
    return [_row(name, trace.name, way, several, found[FIRST]) for way, several in found.items()]


def _row(machine: str, trace: str, way: str, several: Sequence[Latencies], first: Sequence[Latencies]) -> Compared:
    ratios = [a.mean / b.mean for a, b in zip(several, first, strict=True)]
    plain = several is first
    return Compared(
        machine,
        trace,
        way,
        fmean(each.mean for each in several),
        fmean(each.p99 for each in several),
        max(each.slowest for each in several),
        None if plain else fmean(ratios),
        None if plain else max(ratios),
        sum(each.preempted for each in several),
        _mean([each.length_error for each in several]),
        _mean([each.service_error for each in several]),
        fmean(each.busy for each in several),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
