"""Batch: the sequences of the next pass. Room: what a scheduler may hand out."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property

from draftwood.core.request import Request

WORTH_WAITING = 32  # tokens


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
class Prefix:
    """Of a request that waits: how many of its first tokens have cache entries now, and how many will have once the
    sequences that run have read their own texts."""

    present: int = 0
    held: int = 0  # of those, in blocks that others hold: they need no room
    coming: int = 0

    @property
    def pays(self) -> bool:
        """Whether reading them here would read much that is about to be there."""
        return self.coming - self.present >= WORTH_WAITING


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
    """Free the slot of a request that gives it up for another."""
    prefix: Callable[[Request, Collection[int]], Prefix] = field(repr=False, default=lambda request, running: Prefix())
    """(request, slots that run) -> what it would find in the cache, now and behind them."""
