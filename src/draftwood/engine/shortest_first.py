"""Shortest first, as far as it is known: requests with little service behind or before them run before the others.

    queue 0     up to b seconds of service       new requests, and those whose remaining service is known to be short
    queue 1     up to r b                        within a queue: known remaining service first, then expected one, the
    queue 2     up to r^2 b  ..                  shortest before others

b is a share of what a request takes on average.

A request whose future is unknown sinks by the service it has attained; one whose acceptance is stable stands where its
remaining service belongs (see `Service`). Who does not run pauses: it stays in its slot where there are slots to spare,
otherwise it gives its slot to one of a lower queue if that gains more than reading its text again costs. All of this happens
between rounds. Whoever waited long for its service is promoted until it has run, above other priorities in the end: nobody
starves. The output of a request depends on none of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log

from draftwood.core.batch import Batch, Room, Work
from draftwood.core.request import Request
from draftwood.core.verdict import Outcome
from draftwood.engine.lengths import Errors, LengthEstimate, Lengths
from draftwood.engine.service import Service

_NEW = 0.05  # weight of a new round in the means
Key = tuple[int, int, int, float, int]


@dataclass(slots=True)
class ShortestFirst:
    """`together`: sequences of a pass at most (None: one for every slot). `queues`, `ratio`: their number, and how much more
    service each holds than the one before; the first holds the share `first` of a mean request, and no less than `rounds`
    rounds. `aging`: times its own service, or that of a mean request, that a request waits before it is promoted."""

    together: int | None = None
    queues: int = 5
    ratio: float = 2.0
    rounds: float = 8.0
    first: float = 0.25
    aging: float = 10.0
    lengths: LengthEstimate = field(default_factory=Lengths)
    service_errors: Errors = field(default_factory=Errors)  # of what was perceived
    known: dict[int, Service] = field(default_factory=dict[int, Service])  # by request
    slots: dict[int, Request] = field(default_factory=dict[int, Request])
    now: float = 0.0  # seconds of all rounds
    round_seconds: float = 0.0  # mean of rounds that read no prompt
    mean_service: float = 0.0  # of requests that have ended
    prompt_token: float = 0.0  # mean seconds of a prompt token
    per_token: float = 0.0  # mean service of an emitted token
    _arrived: int = 0

    def add(self, request: Request) -> None:
        self.known[request.id] = Service(request, self._arrived, self.now, self.lengths.remaining(request))
        self._arrived += 1

    @property
    def waiting(self) -> int:
        return len(self.known) - len(self.slots)

    @property
    def running(self) -> dict[int, Request]:
        return self.slots

    # --- who runs

    def next(self, room: Room) -> Batch:
        """The first sequences by key, as many as a pass has; the prompt tokens of a pass go to them in this order."""
        for each in self.known.values():
            self._lift(each)
        width = room.slots if self.together is None else min(self.together, room.slots)
        if len(self.known) <= len(self.slots) and len(self.slots) <= width:
            first = [self.known[r.id] for r in self.slots.values()]  # everybody runs
        else:
            first = sorted(self.known.values(), key=self._key)
            self._admit(room, first[:width])
        held = {request.id: slot for slot, request in self.slots.items()}
        ready: list[Work] = []
        filling: list[Work] = []
        budget, places = room.max_prefill_tokens, width
        for each in first:
            slot, request = held.get(each.request.id), each.request
            if slot is None or not places:
                continue
            done = room.length(slot)
            missing = request.num_known - done
            if missing > 1:
                if budget <= 0:
                    continue
                missing = min(missing, budget)
                budget -= missing
            places -= 1
            work = Work(slot, request, done, missing)
            (ready if work.ready else filling).append(work)
        return Batch(tuple(ready + filling))

    def _admit(self, room: Room, first: list[Service]) -> None:
        """Slots for those who are to run, given up by others where that pays."""
        spare, chosen = room.spare, {each.request.id for each in first}
        for each in first:
            request = each.request
            if request in self.slots.values():
                continue
            prefix = room.prefix(request, [slot for slot, held in self.slots.items() if held.id in chosen])
            if prefix.pays:  # one of those who run is reading what it begins with
                continue
            victim = None
            if len(self.slots) == room.slots:
                victim = self._victim(each, (r for r in self.slots.values() if r.id not in chosen))
                if victim is None:
                    continue
                slot = next(slot for slot, held in self.slots.items() if held is victim)
                spare = None if spare is None else spare + room.length(slot)
                self._give_up(slot)
                room.release(slot)
            if spare is not None and self.slots and request.num_known - prefix.held > spare:
                return
            free = [i for i in range(room.slots) if i not in self.slots]
            slot, done = room.admit(request, free)
            self.slots[slot] = request
            request.stats.cached_tokens = max(request.stats.cached_tokens, min(done, len(request.prompt)))
            spare = None if spare is None else spare - (request.num_known - prefix.held)

    def _victim(self, each: Service, others: Iterable[Request]) -> Request | None:
        """The last of those who do not run, if it stands in a higher queue and gains less from staying than the new one from
        running. Who was promoted takes the next slot that is free: under lasting load everybody is promoted some time, and
        if each took a slot from another, texts would be read again and again."""
        last = max(others, key=lambda r: self._key(self.known[r.id]), default=None)
        if last is None:
            return None
        held = self.known[last.id]
        if self._key(each)[:2] >= self._key(held)[:2]:
            return None
        again = last.num_known * self.prompt_token * len(self.slots)  # the others wait while it is read
        pays = held.request.params.priority > each.request.params.priority
        gain = self._trust * (self._remaining(held) - self._remaining(each))
        return last if pays or gain > again else None

    def _give_up(self, slot: int) -> None:
        self.slots.pop(slot).stats.preempted += 1

    def _key(self, each: Service) -> Key:
        lifts, priority = each.lifts, each.request.params.priority
        remaining = self._remaining(each)
        level = -1 if lifts else self._level(remaining if each.perceptible else each.attained)
        return priority - max(lifts - 1, 0), level, 0 if each.perceptible else 1, remaining, each.order

    def _level(self, seconds: float) -> int:
        """The queue that holds so much service."""
        first = self._base
        if seconds <= first or not first:
            return 0
        return min(int(log(seconds / first, self.ratio)) + 1, self.queues - 1)

    @property
    def _trust(self) -> float:
        """How much of an expected gain counts: none before any answer has ended, nor where lengths are off by half. A gain
        compares two lengths, and both are wrong."""
        error = self.lengths.errors.share
        return 0.0 if error is None else max(1 - 2 * error, 0.0)

    @property
    def _base(self) -> float:
        """Service that the first queue holds."""
        return max(self.first * self.mean_service, self.rounds * self.round_seconds)

    def _remaining(self, each: Service) -> float:
        """Expected seconds of service to come, at the request's own speed or that of all."""
        return self.lengths.remaining(each.request) * (each.per_token or self.per_token)

    def _lift(self, each: Service) -> None:
        if each.lifts and each.attained >= each.lifted_until:
            each.lifts = 0
        usual = max(each.attained, self.mean_service, self._base)
        if usual and self.now - each.since > self.aging * usual * (each.lifts + 1):
            each.lifts += 1
            each.lifted_until = each.attained + self._base

    # --- what rounds teach

    def settle(self, batch: Batch, outcome: Outcome | None) -> list[Request]:
        if outcome is not None and batch.sequences:
            self._learn(batch, outcome)
        finished = [r for r in self.slots.values() if r.finished]
        for request in finished:
            self.drop(request)
        return finished

    def _learn(self, batch: Batch, outcome: Outcome) -> None:
        times = outcome.seconds
        self.now += times.total
        if times.prompt_tokens:
            prompt = max(times.total - self.round_seconds, 0.0) / times.prompt_tokens
            self.prompt_token += (_NEW if self.prompt_token else 1.0) * (prompt - self.prompt_token)
        else:
            self.round_seconds += (_NEW if self.round_seconds else 1.0) * (times.total - self.round_seconds)
        for work in batch.sequences:
            self.known[work.request.id].since = self.now
        kept = outcome.clipped or tuple(count + 1 for count in outcome.accepted)
        decoded = zip(batch.ready, kept, outcome.judged, outcome.accepted, strict=True)
        for work, tokens, judged, accepted in decoded:
            own = self.known[work.request.id]
            own.decode(times.total, tokens, judged, accepted)
            if tokens:
                self.per_token += (_NEW if self.per_token else 1.0) * (times.total / tokens - self.per_token)
            if own.perceptible and own.perceived is None:
                own.perceived = own.attained + self._remaining(own)
        for work in batch.sequences[len(batch.ready) :]:
            self.known[work.request.id].attained += times.total

    # --- who leaves

    def preempt(self) -> int | None:
        """The last by key."""
        if len(self.slots) < 2:
            return None
        slot = max(self.slots, key=lambda slot: self._key(self.known[self.slots[slot].id]))
        self._give_up(slot)
        return slot

    def drop(self, request: Request) -> int | None:
        own = self.known.pop(request.id, None)
        if own is not None and request.finish_reason in ("stop", "length"):
            self.lengths.learn(request, own.length)
            self.mean_service += (_NEW if self.mean_service else 1.0) * (own.attained - self.mean_service)
            if own.perceived is not None:
                self.service_errors.add(own.perceived, own.attained)
        for slot, held in self.slots.items():
            if held is request:
                del self.slots[slot]
                return slot
        return None
