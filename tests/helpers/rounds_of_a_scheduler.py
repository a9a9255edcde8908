"""A scheduler without an engine: every round takes a second and gives each sequence one token."""

from typing import Any

import torch

from draftwood.core.batch import Room
from draftwood.core.proposal import Proposal
from draftwood.core.request import Request
from draftwood.core.verdict import HostVerdict, Outcome, Times, Verdict


class Rounds:
    def __init__(self, scheduler: Any, slots: int) -> None:
        self.scheduler, self.slots = scheduler, slots
        self.done: dict[int, int] = {}  # tokens in each slot's cache
        self.ended: list[int] = []
        self.released: list[int] = []

    def add(self, request: Request) -> None:
        self.scheduler.add(request)

    def _admit(self, request: Request, free: list[int]) -> tuple[int, int]:
        self.done[free[0]] = 0
        return free[0], 0

    def _release(self, slot: int) -> None:
        self.released.append(self.scheduler_request(slot))
        self.done.pop(slot)

    def scheduler_request(self, slot: int) -> int:
        return 0

    def play(self, rounds: int) -> list[list[int]]:
        """Who decoded in each of these rounds."""
        found: list[list[int]] = []
        for _ in range(rounds):
            room = Room(self.slots, 512, None, lambda slot: self.done[slot], self._admit, self._release)
            batch = self.scheduler.next(room)
            count = len(batch.ready)
            for work in batch.sequences:
                self.done[work.slot] += work.take
            for work in batch.ready:
                work.request.accept([1], [-1])
            if batch.sequences:
                path = torch.zeros(count, 1, dtype=torch.int64)
                verdict = Verdict(path, path[:, 0], path[:, 0], HostVerdict([[0]] * count, [1] * count))
                outcome = Outcome(
                    Proposal.roots(path[:, 0]), verdict, path, Times({"score": 1.0}), (0,) * count, (0,) * count,
                    [[1]] * count, (1,) * count,
                )  # fmt: skip
                found.append([work.request.id for work in batch.ready])
                self.ended += [r.id for r in self.scheduler.settle(batch, outcome)]
            else:
                self.scheduler.settle(batch, None)
        return found
