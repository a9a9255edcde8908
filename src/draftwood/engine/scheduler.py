"""First come, first served, without phases: each running sequence gets its next known tokens, decoding before prefill."""

from bisect import insort
from dataclasses import dataclass, field

from draftwood.core.batch import Batch, Room, Work
from draftwood.core.request import Request
from draftwood.core.verdict import Outcome

_LOOKED_AT = 64  # requests of the queue, while there are free slots


@dataclass(slots=True)
class FirstCome:
    """Requests wait by priority, those of one priority in arrival order, and run in slots. Preemption takes the youngest of
    the last priority, which has the least to recompute."""

    queue: list[Request] = field(default_factory=list[Request])
    slots: dict[int, Request] = field(default_factory=dict[int, Request])  # in order of admission

    def add(self, request: Request) -> None:
        insort(self.queue, request, key=_priority)

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def running(self) -> dict[int, Request]:
        return self.slots

    def next(self, room: Room) -> Batch:
        """Admit while there is room, then share out the prompt tokens of one pass, oldest first."""
        self._admit(room)
        ready: list[Work] = []
        filling: list[Work] = []
        budget = room.max_prefill_tokens
        for slot, request in self.slots.items():
            done = room.length(slot)
            missing = request.num_known - done
            if missing == 1:
                ready.append(Work(slot, request, done, 1))
            elif budget > 0:
                work = Work(slot, request, done, min(missing, budget))
                budget -= work.take
                (ready if work.ready else filling).append(work)
        return Batch(tuple(ready + filling))

    def _admit(self, room: Room) -> None:
        """In order. Only requests that begin like one whose text is being read wait for it, and let others pass."""
        spare, at = room.spare, 0
        while at < min(len(self.queue), _LOOKED_AT) and len(self.slots) < room.slots:
            request = self.queue[at]
            prefix = room.prefix(request, self.slots.keys())
            if prefix.pays:
                at += 1
                continue
            if spare is not None and self.slots and request.num_known - prefix.held > spare:
                return
            free = [i for i in range(room.slots) if i not in self.slots]
            slot, done = room.admit(request, free)
            self.queue.pop(at)
            self.slots[slot] = request
            request.stats.cached_tokens = max(request.stats.cached_tokens, min(done, len(request.prompt)))
            if spare is not None:
                spare -= request.num_known - prefix.held

    def settle(self, batch: Batch, outcome: Outcome | None) -> list[Request]:
        """Remove finished requests from their slots."""
        finished = [(slot, r) for slot, r in self.slots.items() if r.finished]
        for slot, _ in finished:
            del self.slots[slot]
        return [r for _, r in finished]

    def preempt(self) -> int | None:
        if len(self.slots) < 2:
            return None
        last = max(map(_priority, self.slots.values()))
        slot = [slot for slot, request in self.slots.items() if _priority(request) == last][-1]
        request = self.slots.pop(slot)
        request.stats.preempted += 1
        at = next((i for i, other in enumerate(self.queue) if _priority(other) >= last), len(self.queue))
        self.queue.insert(at, request)
        return slot

    def drop(self, request: Request) -> int | None:
        if request in self.queue:
            self.queue.remove(request)
        for slot, held in self.slots.items():
            if held is request:
                del self.slots[slot]
                return slot
        return None


def _priority(request: Request) -> int:
    return request.params.priority
