"""A sequence that somebody waits for, and the mailbox in which the engine thread puts what its rounds did."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from draftwood.core.request import Request
from draftwood.results import Piece, PieceReader
from draftwood.server.rounds import RoundView


@dataclass(frozen=True, slots=True)
class Update:
    """What one round did for one sequence. `rounds_of`: the round of each piece's token."""

    choice: int
    pieces: tuple[Piece, ...]
    rounds_of: tuple[int, ...]
    logprobs: tuple[Any, ...]
    rounds: tuple[RoundView, ...]
    finished: bool


class Mailbox:
    """Updates of the sequences of one caller, written by the engine thread, read by one task of an event loop."""

    def __init__(self, sequences: int = 1) -> None:
        self.sequences = sequences
        self.loop = asyncio.get_running_loop()
        self.ready = asyncio.Event()
        self._updates: deque[Update] = deque()
        self._written = self._read = 0  # tokens; each is changed by one thread only

    def put(self, update: Update) -> None:
        self._written += len(update.pieces)
        self._updates.append(update)

    @property
    def unread(self) -> int:
        return self._written - self._read

    async def next(self) -> Update:
        while not self._updates:
            self.ready.clear()
            if not self._updates:  # one may have come before the event was cleared
                await self.ready.wait()
        update = self._updates.popleft()
        self._read += len(update.pieces)
        return update


@dataclass(slots=True, eq=False)
class Ask:
    """One sequence that somebody waits for. The engine thread owns all that changes."""

    request: Request
    recipe: str
    mailbox: Mailbox
    choice: int = 0
    deadline: float | None = None  # of `time.monotonic`
    with_rounds: bool = False
    follows: "Ask | None" = None  # enters the engine once this one has emitted: its prompt is in the cache then

    ended_by: str | None = None  # why it was cancelled
    asked_at: float = field(default_factory=perf_counter)
    first_at: float | None = None
    ended_at: float | None = None
    entered: bool = False
    _reader: PieceReader = field(default_factory=PieceReader)
    _rounds_of: list[int] = field(default_factory=list[int])  # of each token
    views: list[RoundView] = field(default_factory=list[RoundView])

    def advance(self, names: Sequence[str]) -> bool:
        """Post what the last round did; after the end nothing more. Whether there was anything."""
        r = self.request
        new = len(r.output) - len(self._rounds_of)
        if new:
            if self.first_at is None:
                self.first_at = perf_counter()
            self._rounds_of += [r.stats.target_passes - 1] * new
        if self.ended_at is not None or not (new or r.finished):
            return False
        given = self._reader.given
        pieces = self._reader.read(r, names)
        stop = self._reader.given
        views = tuple(self.views)
        self.views.clear()
        if r.finished:
            self.ended_at = perf_counter()
        if pieces or views or r.finished:
            logprobs = tuple(r.logprobs[given:stop]) if r.params.logprobs is not None else ()
            rounds_of = tuple(self._rounds_of[given:stop])
            self.mailbox.put(Update(self.choice, pieces, rounds_of, logprobs, views, r.finished))
        return True
