"""Arms: how large a draft of the model would be if it were made now, and how many tokens a second it would bring.

ConfidentChain   one chain, ended where the drafter grows uncertain: where its probabilities can be looked at
SizedTree        a tree of a fixed size from a measured table: where they cannot, on an accelerator
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from draftwood.controllers.acceptance import Acceptance, Outlook, Size
from draftwood.controllers.shifts import Shifts
from draftwood.controllers.yields import Yields
from draftwood.core.limit import CostEstimate, Limit
from draftwood.core.request import Request
from draftwood.core.round import Round

GREEDY, SAMPLED = (
    (1.4, 2.3),
    (0.5, 1.5),
)  # accepted tokens and levels of a first draft; the embedded model's head has these


class Arm(Protocol):
    """Parts are frozen; `init` makes what changes."""

    @property
    def nodes(self) -> int:
        """Of the largest draft."""
        ...

    def init(self) -> Any: ...
    def price(self, state: Any, cost: CostEstimate, seconds: Sequence[float], batch: int) -> None:
        """Look up costs. `seconds`: of a round without drafting, for each sequence, by its nodes."""
        ...

    def rates(self, state: Any, rnd: Round) -> list[float]:
        """Tokens a second of each sequence, if all of them are drafted."""
        ...

    def limit(self, state: Any, requests: Sequence[Request], rnd: Round) -> Limit:
        """Of a draft for these requests."""
        ...

    def learn(self, state: Any, slot: int, request: Request, accepted: int, levels: int) -> None: ...
    def rest(self, state: Any, slot: int) -> None:
        """A round in which this slot got another draft, or none."""
        ...

    def free(self, state: Any, slot: int) -> None: ...


@dataclass(slots=True)
class _Chains:
    yields: tuple[Yields, Yields]  # of greedy requests, and of sampled ones
    seconds: Sequence[float] = ()
    start: float = 0.0  # seconds of a draft, and of each of its levels
    level: float = 0.0


@dataclass(frozen=True, slots=True)
class ConfidentChain:
    """At most `depth` tokens; none behind a path that the drafter gives less than `least` chance, or `least_sampled` where
    the target samples: there a probable token is less often the emitted one."""

    depth: int = 5
    least: float = 0.3
    least_sampled: float = 0.6

    @property
    def nodes(self) -> int:
        return self.depth

    def init(self) -> _Chains:
        return _Chains((Yields(GREEDY), Yields(SAMPLED)))

    def price(self, state: _Chains, cost: CostEstimate, seconds: Sequence[float], batch: int) -> None:
        one, all_ = cost.draft_seconds(1, batch) / batch, cost.draft_seconds(self.depth, batch * self.depth) / batch
        state.level = (all_ - one) / max(self.depth - 1, 1)
        state.start, state.seconds = one - state.level, seconds

    def rates(self, state: _Chains, rnd: Round) -> list[float]:
        return [self._rate(state, slot, r) for slot, r in zip(rnd.host_slots, rnd.requests, strict=True)]

    def _rate(self, state: _Chains, slot: int, request: Request) -> float:
        accepted, levels = state.yields[not request.params.greedy].expected(slot)
        low = min(int(levels), len(state.seconds) - 2)
        share = levels - low
        scored = (1 - share) * state.seconds[low] + share * state.seconds[low + 1]
        return (1 + accepted) / (scored + state.start + levels * state.level)

    def limit(self, state: _Chains, requests: Sequence[Request], rnd: Round) -> Limit:
        sampled = any(not r.params.greedy for r in requests)
        size = [self.depth] * len(requests)
        return Limit.of(size, size, rnd.device, least=self.least_sampled if sampled else self.least)

    def learn(self, state: _Chains, slot: int, request: Request, accepted: int, levels: int) -> None:
        state.yields[not request.params.greedy].learn(slot, accepted, levels)

    def rest(self, state: _Chains, slot: int) -> None:
        for each in state.yields:
            each.rest(slot)

    def free(self, state: _Chains, slot: int) -> None:
        for each in state.yields:
            each.free(slot)


@dataclass(slots=True)
class _Trees:
    shifts: Shifts
    seconds: np.ndarray  # [S]
    best: int = 0  # place of the size that the last rates are of


@dataclass(frozen=True, slots=True)
class SizedTree:
    """The best of these sizes by a measured acceptance table that follows each text, as `Sized` chooses."""

    acceptance: Acceptance
    sizes: tuple[Size, ...]

    @property
    def nodes(self) -> int:
        return max(nodes for _, nodes in self.sizes)

    def init(self) -> _Trees:
        return _Trees(Shifts(Outlook.of(self.acceptance, self.sizes)), np.ones(len(self.sizes)))

    def price(self, state: _Trees, cost: CostEstimate, seconds: Sequence[float], batch: int) -> None:
        draft = [cost.draft_seconds(depth, batch * nodes) / batch for depth, nodes in self.sizes]
        state.seconds = np.array([seconds[nodes] for _, nodes in self.sizes]) + np.array(draft)

    def rates(self, state: _Trees, rnd: Round) -> list[float]:
        both = zip(rnd.host_slots, rnd.requests, strict=True)
        accepted = np.stack([state.shifts.accepted(slot, r.params.temperature) for slot, r in both])
        state.best = int(((rnd.batch + accepted.sum(0)) / state.seconds).argmax())
        return ((1 + accepted[:, state.best]) / state.seconds[state.best]).tolist()

    def limit(self, state: _Trees, requests: Sequence[Request], rnd: Round) -> Limit:
        depth, nodes = self.sizes[state.best]
        return Limit.of([depth] * len(requests), [nodes] * len(requests), rnd.device)

    def learn(self, state: _Trees, slot: int, request: Request, accepted: int, levels: int) -> None:
        state.shifts.learn(slot, state.best, request.params.temperature, accepted, levels)

    def rest(self, state: _Trees, slot: int) -> None:
        state.shifts.fade([slot])

    def free(self, state: _Trees, slot: int) -> None:
        state.shifts.free(slot)
