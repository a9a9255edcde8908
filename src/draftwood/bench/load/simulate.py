"""A simulator of discrete events that runs the engine's own schedulers: only the passes and the texts are made up.

A round takes the seconds of a machine, by tokens, context and draft; each of its sequences emits one token and those
accepted in a recorded round. Requests come at given seconds. What a scheduler sees is what it sees in the engine: room,
cache entries of every slot, outcomes with their times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np
import torch

from draftwood.bench.load.arrivals import Answer, Arrival
from draftwood.core.batch import Batch, Room
from draftwood.core.proposal import Proposal
from draftwood.core.protocols import Scheduler
from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.verdict import HostVerdict, Outcome, Times, Verdict
from draftwood.engine.shortest_first import ShortestFirst

VOCAB_SIZE = 2
END = 1  # the token that ends an answer
PREFILL = 512  # prompt tokens of a pass, as the engine's default


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of a round. `passes`: of passes over some numbers of tokens, between which a line is drawn; `entry`: more for
    each cache entry that they see; `depth`: drafted tokens of every sequence, `level`: seconds of drafting one for all."""

    passes: tuple[tuple[int, float], ...]
    entry: float = 0.0
    depth: int = 0
    level: float = 0.0

    def seconds(self, tokens: int, context: int, sequences: int) -> float:
        points, values = zip(*self.passes, strict=True)
        drafted = self.depth * sequences
        inside = float(np.interp(tokens + drafted, points, values))
        return inside + self.entry * context + (self.level * self.depth if sequences else 0.0)

    def work(self, slots: int, answer: Answer, tokens: int) -> float:
        """Seconds that an answer takes of a machine whose slots are all busy."""
        accepted = [min(each, self.depth) for each in answer.accepted] or [0]
        per_token = self.seconds(slots, 0, slots) / slots / (1 + fmean(accepted))
        (_, before), (most, last) = self.passes[-2:]
        reading = last / most if before < last else 0.0
        return answer.prompt * reading + tokens * per_token


@dataclass(slots=True)
class Running:
    """A request in the simulator: what it will do."""

    arrival: Arrival
    request: Request
    rounds: int = 0
    ended: float | None = None

    @property
    def latency(self) -> float:
        assert self.ended is not None
        return self.ended - self.arrival.second

    def accepted(self, depth: int) -> int:
        """Drafted tokens that this round accepts, the recorded rounds over and over."""
        known = self.arrival.answer.accepted
        self.rounds += 1
        return min(known[(self.rounds - 1) % len(known)], depth) if known and depth else 0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of one run, in seconds. `slowest`: the longest latency over the seconds the request would have taken alone."""

    mean: float
    p99: float
    slowest: float
    preempted: int
    length_error: float | None
    service_error: float | None
    busy: float  # share of the time in which a round ran


@dataclass(slots=True)
class Simulator:
    """`scheduler`: one of the engine's. `slots`: as in the engine."""

    scheduler: Scheduler
    machine: Machine
    slots: int
    now: float = 0.0
    working: float = 0.0
    cached: dict[int, int] = field(default_factory=dict[int, int])  # entries by slot

    def run(self, arrivals: Sequence[Arrival]) -> list[Running]:
        """All requests to their ends."""
        scheduler = self.scheduler
        live = [Running(each, _request(i, each)) for i, each in enumerate(arrivals)]
        coming, left = list(live), len(live)
        while left:
            while coming and coming[0].arrival.second <= self.now:
                scheduler.add(coming.pop(0).request)
            batch = scheduler.next(self._room())
            if not batch.sequences:
                scheduler.settle(batch, None)
                self.now = max(self.now, coming[0].arrival.second)
                continue
            outcome = self._round(batch, live)
            for request in scheduler.settle(batch, outcome):
                live[request.id].ended = self.now
                left -= 1
            for slot in [slot for slot in self.cached if slot not in scheduler.running]:
                del self.cached[slot]
        return live

    def _room(self) -> Room:
        def admit(request: Request, free: list[int]) -> tuple[int, int]:
            self.cached[free[0]] = 0
            return free[0], 0

        def release(slot: int) -> None:
            del self.cached[slot]

        return Room(self.slots, PREFILL, None, self.cached.__getitem__, admit, release)

    def _round(self, batch: Batch, live: list[Running]) -> Outcome:
        ready, tokens = batch.ready, sum(work.take for work in batch.sequences)
        context = sum(work.done for work in batch.sequences)
        seconds = self.machine.seconds(tokens, context, len(ready))
        self.now += seconds
        self.working += seconds
        emitted: list[list[int]] = []
        kept: list[int] = []
        for work in batch.sequences:
            self.cached[work.slot] += work.take
        for work in ready:
            own = live[work.request.id]
            room = own.arrival.tokens - len(work.request.output)
            count = min(1 + own.accepted(self.machine.depth), room)
            made = [0] * count
            if count == room:
                made[-1] = END
            kept.append(work.request.accept(made, [-1] * count))
            self.cached[work.slot] += kept[-1] - 1
            emitted.append(made)
        times = Times({"score": seconds}, tokens=tokens, context=context, prompt_tokens=tokens - len(ready))
        return _outcome(emitted, kept, self.machine.depth, times)


def _request(number: int, arrival: Arrival) -> Request:
    params = SamplingParams(max_tokens=arrival.cap, seed=0)
    return Request(number, [0] * arrival.answer.prompt, params, VOCAB_SIZE, eos=(END,))


def _outcome(emitted: list[list[int]], kept: list[int], depth: int, times: Times) -> Outcome:
    count = len(emitted)
    root = torch.zeros(count, 1, dtype=torch.int64)
    host = HostVerdict([list(range(len(each))) for each in emitted], [each[-1] for each in emitted])
    verdict = Verdict(root, torch.tensor([len(each) - 1 for each in emitted]), root[:, 0], host)
    drafted = (depth,) * count
    return Outcome(Proposal.roots(root[:, 0]), verdict, root, times, drafted, drafted, emitted, tuple(kept))


def simulated(
    scheduler: Scheduler, machine: Machine, slots: int, arrivals: Sequence[Arrival]
) -> tuple[Latencies, list[Running]]:
    simulator = Simulator(scheduler, machine, slots)
    done = simulator.run(arrivals)
    latencies = [each.latency for each in done]
    alone = [_alone(each.arrival, machine) for each in done]
    errors = (None, None)
    if isinstance(scheduler, ShortestFirst):
        errors = scheduler.lengths.errors.share, scheduler.service_errors.share
    return Latencies(
        fmean(latencies),
        float(np.percentile(latencies, 99)),
        max(latency / own for latency, own in zip(latencies, alone, strict=True)),
        sum(each.request.stats.preempted for each in done),
        *errors,
        simulator.working / simulator.now,
    ), done


def _alone(arrival: Arrival, machine: Machine) -> float:
    """Seconds of plain rounds for one request and nobody else."""
    prompt, tokens = arrival.answer.prompt, arrival.tokens
    return machine.seconds(prompt, 0, 0) + (tokens - 1) * machine.seconds(1, prompt, 0)
