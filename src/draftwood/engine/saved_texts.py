"""SavedTexts: copies of the cache entries of preempted requests, so that they need not be computed again.

A text whose sequence gives its slot up is copied out of the cache if that takes less time than a pass over it, and if there
is room for the copy; otherwise it is read again when the request comes back. What its request finds in the cache by then is
not copied back.
"""

from dataclasses import dataclass, field
from time import perf_counter

from draftwood.core.limit import CostEstimate
from draftwood.core.protocols import Runner, Saved
from draftwood.core.request import Request

_NEW = 0.2  # weight of a new copy in the mean


@dataclass(slots=True)
class SavedTexts:
    """`max_tokens`: of all copies together. `chunk`: prompt tokens of a pass."""

    runner: Runner
    cost_model: CostEstimate
    max_tokens: int
    chunk: int
    held: dict[int, Saved] = field(default_factory=dict[int, Saved])  # by request
    seconds: float = 0.0  # of a token's way out and back: twice what a copy took; 0: none was made yet
    saved: int = 0  # tokens that were copied out, and tokens that were copied back
    restored: int = 0

    def save(self, slot: int, request: Request) -> None:
        """Called before the slot is freed."""
        size = self.runner.length(slot)
        room = self.max_tokens - sum(each.num_tokens for each in self.held.values())
        if not size or size > room or size * self.seconds > self._pass_seconds(size):
            return
        started = perf_counter()
        found = self.runner.save(slot)
        if found is None or not found.num_tokens:
            return
        self.held[request.id] = found
        each = 2 * (perf_counter() - started) / found.num_tokens
        self.seconds += (_NEW if self.seconds else 1.0) * (each - self.seconds)
        self.saved += found.num_tokens

    def restore(self, slot: int, request: Request, done: int, most: int | None) -> int:
        """Called after a request was admitted with `done` entries; how many it has now."""
        found = self.held.pop(request.id, None)
        if found is None:
            return done
        size = self.runner.restore(slot, found, request.known, most)
        self.restored += size - done
        return size

    def drop(self, request: Request) -> None:
        self.held.pop(request.id, None)

    def _pass_seconds(self, tokens: int) -> float:
        """Of reading so many tokens again."""
        whole, rest = divmod(tokens, self.chunk)
        estimate = self.cost_model.pass_seconds
        return whole * estimate(self.chunk) + (estimate(rest) if rest else 0.0)
