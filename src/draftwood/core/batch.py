"""Batch: the sequences of the next pass. Room: what a scheduler may hand out."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from draftwood.core.request import Request


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence of the next pass: `take` of the request's known tokens that are not in the cache."""

    slot: int
    request: Request
    done: int
    take: int

    @property
    def ready(self) -> bool:
        """Whether the last known token is reached, so that the sequence decodes in this pass."""
        return self.done + self.take == self.request.num_known

    @property
    def tokens(self) -> list[int]:
        return self.request.known_from(self.done, self.done + self.take)


@dataclass(frozen=True)
class Batch:
    """Sequences to run. Those that decode stand first."""

    sequences: tuple[Work, ...] = ()

    @cached_property
    def ready(self) -> tuple[Work, ...]:
        return tuple(w for w in self.sequences if w.ready)


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to give: slots, cache entries, prompt tokens of a pass; how a request is admitted and a slot freed."""

    slots: int
    max_prefill_tokens: int
    spare: int | None
    length: Callable[[int], int]
    admit: Callable[[Request, list[int]], tuple[int, int]] = field(repr=False)
    """(request, free slots) -> the slot taken and how many entries of its text are already there."""
    release: Callable[[int], None] = field(repr=False, default=lambda slot: None)
    """Free the slot of a request that gives it up for another; its text is read again when it comes back."""
