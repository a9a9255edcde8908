"""Arms: how large a draft of the model would be if it were made now, and how many tokens a second it would bring.

ConfidentChain   one chain, ended where the drafter grows uncertain, with the next best tokens beside it: where its
                 probabilities can be looked at
SizedTree        a tree of a fixed size from a measured table: where they cannot, on an accelerator
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from draftwood.controllers.estimates.acceptance import Acceptance, Outlook, Size
from draftwood.controllers.estimates.shifts import Shifts
from draftwood.controllers.estimates.survival import Survival
from draftwood.controllers.estimates.yields import Yield, Yields
from draftwood.core.limit import CostEstimate, Limit
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.drafters.combine.fusion import Drafted
from draftwood.drafters.retrieval.retrieved import Retrieved

# Of the embedded model's head: what a first draft brings, and the log-odds by which it is more often right than it says.
GREEDY, SAMPLED = Yield(1.4, 2.9, 3.1), Yield(0.5, 1.3, 2.4)
MORE_GREEDY, MORE_SAMPLED = 0.85, -0.25


Counts = tuple[int, int]


class Arm(Protocol):
    """Parts are frozen; `init` makes what changes."""

    @property
    def nodes(self) -> int:
        """Of the largest draft that is scored."""
        ...

    def init(self) -> Any: ...
    def price(self, state: Any, cost: CostEstimate, seconds: Sequence[float], batch: int) -> None:
        """Look up costs. `seconds`: of a round without drafting, for each sequence, by its nodes."""
        ...

    def expected(self, state: Any, rnd: Round) -> list[tuple[float, float, float]]:
        """Of each sequence, if all of them are drafted: accepted tokens, scored nodes, and seconds of the draft."""
        ...

    def limit(self, state: Any, rnd: Round, room: Limit) -> Limit:
        """Of a draft for these sequences, of which no more than `room` is scored."""
        ...

    def learn(
        self, state: Any, slot: int, request: Request, scored: Drafted | None, emitted: Sequence[int], counts: Counts
    ) -> None:
        """One draft: the nodes of it that were scored, if they were looked at, and what was emitted. `counts`: levels that
        were accepted, and scored."""
        ...

    def rest(self, state: Any, slot: int) -> None:
        """A round in which this slot got another draft, or none."""
        ...

    def free(self, state: Any, slot: int) -> None: ...


@dataclass(slots=True)
class _Kind:
    """What is known of greedy requests, or of sampled ones."""

    yields: Yields
    ranks: tuple[Survival, ...]  # of the best token, the next one, and all others


@dataclass(slots=True)
class _Chains:
    kinds: tuple[_Kind, _Kind]  # greedy, sampled
    start: float = 0.0  # seconds of a draft, and of each of its levels
    level: float = 0.0

    def kind(self, request: Request) -> _Kind:
        return self.kinds[not request.params.greedy]


@dataclass(frozen=True, slots=True)
class ConfidentChain:
    """At most `depth` tokens; none behind a path with less than `least` chance. Each has up to `children` - 1 other tokens
    beside it, if the policy reads so many. The chance of a token is what the model says, corrected by how often it was right
    so far. `passes`: of the longest draft, where it takes less than one for each token."""

    depth: int = 8
    least: float = 0.45
    passes: int | None = None
    children: int = 1

    @property
    def nodes(self) -> int:
        return self.depth

    def init(self) -> _Chains:
        return _Chains((_kind(GREEDY, MORE_GREEDY), _kind(SAMPLED, MORE_SAMPLED)))

    def price(self, state: _Chains, cost: CostEstimate, seconds: Sequence[float], batch: int) -> None:
        most = self.depth if self.passes is None else min(self.passes, self.depth)
        one, all_ = cost.draft_seconds(1, batch) / batch, cost.draft_seconds(most, batch * self.depth) / batch
        state.level = (all_ - one) / max(self.depth - 1, 1)
        state.start = one - state.level

    def expected(self, state: _Chains, rnd: Round) -> list[tuple[float, float, float]]:
        found: list[tuple[float, float, float]] = []
        for slot, request in zip(rnd.host_slots, rnd.requests, strict=True):
            one = state.kind(request).yields.expected(slot)
            found.append((one.accepted, one.nodes, state.start + one.levels * state.level))
        return found

    def limit(self, state: _Chains, rnd: Round, room: Limit) -> Limit:
        """One threshold for all sequences: the lowest of them. More nodes than are scored: which ones is chosen later."""
        both = zip(rnd.host_slots, rnd.requests, strict=True)
        least = min(state.kind(r).ranks[0].estimate(slot, self.least) for slot, r in both)
        depths = [min(self.depth, deep, nodes) for deep, nodes in zip(room.depths, room.budgets, strict=True)]
        return Limit.of(depths, [deep * self.children for deep in depths], rnd.device, least=least)

    def drafted(self, state: _Chains, rnd: Round, made: Sequence[Retrieved]) -> list[Drafted]:
        """The model's nodes with their chances, where they can be looked at."""
        each = zip(rnd.host_slots, rnd.requests, made, strict=True)
        return [_drafted(state.kind(request).ranks, slot, found) for slot, request, found in each]

    def learn(
        self,
        state: _Chains,
        slot: int,
        request: Request,
        scored: Drafted | None,
        emitted: Sequence[int],
        counts: Counts,
    ) -> None:
        if scored is None:
            return
        kind, at, accepted = state.kind(request), 0, 0
        for token in emitted:
            hit = 0
            for i, parent in enumerate(scored.parents):
                if parent == at:
                    right = scored.tokens[i] == token
                    _of_rank(kind.ranks, scored.ranks[i]).learn(slot, scored.said[i], right)
                    hit = i + 1 if right else hit
            if not hit:
                break
            at, accepted = hit, accepted + 1
        kind.yields.learn(slot, Yield(accepted, scored.levels, len(scored.tokens)))

    def rest(self, state: _Chains, slot: int) -> None:
        for each in state.kinds:
            each.yields.rest(slot)
            for survival in each.ranks:
                survival.rest(slot)

    def free(self, state: _Chains, slot: int) -> None:
        for each in state.kinds:
            each.yields.free(slot)
            for survival in each.ranks:
                survival.free(slot)


def _kind(prior: Yield, more: float) -> _Kind:
    return _Kind(Yields(prior), (Survival(offset=more), Survival(), Survival()))


def _of_rank(ranks: tuple[Survival, ...], rank: int) -> Survival:
    return ranks[min(rank, len(ranks) - 1)]


def _drafted(ranks: tuple[Survival, ...], slot: int, found: Retrieved) -> Drafted:
    """The nodes of one tree. Siblings share the chance that those before them leave."""
    size = len(found.tokens)
    taken, count, depth = [0.0] * (size + 1), [0] * (size + 1), [0] * (size + 1)
    chances: list[float] = []
    places: list[int] = []
    said = found.chances()
    for i, above in enumerate(found.parents):
        rank = count[above]
        chance = min(_of_rank(ranks, rank).chance(slot, said[i]), max(1 - taken[above], 0.0))
        chances.append(chance)
        places.append(rank)
        taken[above] += chance
        count[above] += 1
        depth[i + 1] = depth[above] + 1
    return Drafted(found.tokens, found.parents, said, chances, places, max(depth))


@dataclass(slots=True)
class _Trees:
    shifts: Shifts
    seconds: np.ndarray  # [S] of a round
    draft: np.ndarray  # [S] the part of it that is drafting
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
        return _Trees(
            Shifts(Outlook.of(self.acceptance, self.sizes)), np.ones(len(self.sizes)), np.zeros(len(self.sizes))
        )

    def price(self, state: _Trees, cost: CostEstimate, seconds: Sequence[float], batch: int) -> None:
        state.draft = np.array([cost.draft_seconds(depth, batch * nodes) / batch for depth, nodes in self.sizes])
        state.seconds = np.array([seconds[nodes] for _, nodes in self.sizes]) + state.draft

    def expected(self, state: _Trees, rnd: Round) -> list[tuple[float, float, float]]:
        both = zip(rnd.host_slots, rnd.requests, strict=True)
        accepted = np.stack([state.shifts.accepted(slot, r.params.temperature) for slot, r in both])
        state.best = best = int(((rnd.batch + accepted.sum(0)) / state.seconds).argmax())
        nodes, draft = self.sizes[best][1], float(state.draft[best])
        return [(float(each), nodes, draft) for each in accepted[:, best]]

    def limit(self, state: _Trees, rnd: Round, room: Limit) -> Limit:
        depth, nodes = self.sizes[state.best]
        return Limit.of([depth] * rnd.batch, [nodes] * rnd.batch, rnd.device).at_most(room.depths, room.budgets)

    def learn(
        self, state: _Trees, slot: int, request: Request, scored: Drafted | None, emitted: Sequence[int], counts: Counts
    ) -> None:
        if counts[1]:
            state.shifts.learn(slot, state.best, request.params.temperature, *counts)

    def rest(self, state: _Trees, slot: int) -> None:
        state.shifts.fade([slot])

    def free(self, state: _Trees, slot: int) -> None:
        state.shifts.free(slot)
