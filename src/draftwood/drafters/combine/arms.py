"""Arms: how large a draft of the model would be if it were made now, and how many tokens a second it would bring.

ConfidentChain   one chain, ended where the drafter grows uncertain: where its probabilities can be looked at
SizedTree        a tree of a fixed size from a measured table: where they cannot, on an accelerator
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp
from typing import Any, Protocol

import numpy as np

from draftwood.controllers.acceptance import Acceptance, Outlook, Size
from draftwood.controllers.shifts import Shifts
from draftwood.controllers.survival import Survival
from draftwood.controllers.yields import Yield, Yields
from draftwood.core.host import host
from draftwood.core.limit import CostEstimate, Limit
from draftwood.core.proposal import Proposal
from draftwood.core.request import Request
from draftwood.core.round import Round
from draftwood.drafters.combine.fusion import Drafted

# Of the embedded model's head: what a first draft brings, and the log-odds by which it is more often right than it says.
GREEDY, SAMPLED = Yield(1.7, 3.5, 2.5), Yield(0.4, 1.5, 1.0)
MORE_GREEDY, MORE_SAMPLED = 0.85, -0.25


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

    def expected(self, state: Any, rnd: Round) -> list[tuple[float, float, float]]:
        """Of each sequence, if all of them are drafted: accepted tokens, scored nodes, and seconds of the draft."""
        ...

    def limit(self, state: Any, rnd: Round) -> Limit:
        """Of a draft for these sequences."""
        ...

    def drafted(self, state: Any, rnd: Round, made: Proposal) -> list[Drafted] | None:
        """The model's chains with their chances; None if they cannot be looked at."""
        ...

    def learn(self, state: Any, slot: int, request: Request, accepted: int, levels: int) -> None:
        """One draft of which so many levels were scored."""
        ...

    def rest(self, state: Any, slot: int) -> None:
        """A round in which this slot got another draft, or none."""
        ...

    def free(self, state: Any, slot: int) -> None: ...


@dataclass(slots=True)
class _Kind:
    """What is known of greedy requests, or of sampled ones."""

    yields: Yields
    survival: Survival


@dataclass(slots=True)
class _Chains:
    kinds: tuple[_Kind, _Kind]  # greedy, sampled
    start: float = 0.0  # seconds of a draft, and of each of its levels
    level: float = 0.0
    said: dict[int, list[float]] = field(
        default_factory=dict[int, list[float]]
    )  # by slot: the last draft's probabilities

    def kind(self, request: Request) -> _Kind:
        return self.kinds[not request.params.greedy]


@dataclass(frozen=True, slots=True)
class ConfidentChain:
    """At most `depth` tokens; none behind a path with less than `least` chance. The chance of a token is what the model
    says, corrected by how often it was right so far. `passes`: of the longest draft, where it takes less than one for each
    token."""

    depth: int = 8
    least: float = 0.35
    passes: int | None = None

    @property
    def nodes(self) -> int:
        return self.depth

    def init(self) -> _Chains:
        greedy = _Kind(Yields(GREEDY), Survival(offset=MORE_GREEDY))
        return _Chains((greedy, _Kind(Yields(SAMPLED), Survival(offset=MORE_SAMPLED))))

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

    def limit(self, state: _Chains, rnd: Round) -> Limit:
        """One threshold for all sequences: the lowest of them."""
        both = zip(rnd.host_slots, rnd.requests, strict=True)
        least = min(state.kind(r).survival.estimate(slot, self.least) for slot, r in both)
        size = [self.depth] * rnd.batch
        return Limit.of(size, size, rnd.device, least=least)

    def drafted(self, state: _Chains, rnd: Round, made: Proposal) -> list[Drafted] | None:
        tree = made.tree
        found: list[Drafted] = []
        each = zip(rnd.host_slots, rnd.requests, *(host(x) for x in (tree.tokens, tree.score, tree.live)), strict=True)
        for slot, request, tokens, score, live in each:
            size = sum(live)
            said = [exp(b - a) for a, b in pairwise(score[:size])]
            state.said[slot] = said
            survival = state.kind(request).survival
            found.append(Drafted(tokens[1:size], [survival.chance(slot, x) for x in said]))
        return found

    def learn(self, state: _Chains, slot: int, request: Request, accepted: int, levels: int) -> None:
        kind, said = state.kind(request), state.said.pop(slot, [])
        accepted = min(accepted, levels)
        kind.yields.learn(slot, Yield(accepted, len(said), levels))
        for i, estimate in enumerate(said[: min(accepted + 1, levels)]):
            kind.survival.learn(slot, estimate, i < accepted)

    def rest(self, state: _Chains, slot: int) -> None:
        for each in state.kinds:
            each.yields.rest(slot)
            each.survival.rest(slot)

    def free(self, state: _Chains, slot: int) -> None:
        state.said.pop(slot, None)
        for each in state.kinds:
            each.yields.free(slot)
            each.survival.free(slot)


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

    def limit(self, state: _Trees, rnd: Round) -> Limit:
        depth, nodes = self.sizes[state.best]
        return Limit.of([depth] * rnd.batch, [nodes] * rnd.batch, rnd.device)

    def drafted(self, state: _Trees, rnd: Round, made: Proposal) -> None:
        return None

    def learn(self, state: _Trees, slot: int, request: Request, accepted: int, levels: int) -> None:
        if levels:
            state.shifts.learn(slot, state.best, request.params.temperature, accepted, levels)

    def rest(self, state: _Trees, slot: int) -> None:
        state.shifts.fade([slot])

    def free(self, state: _Trees, slot: int) -> None:
        state.shifts.free(slot)
