"""Goodput: the depth whose rounds are expected to emit most tokens a second, for the whole batch; depth 0 drafts nothing.

    tokens of depth k     for every sequence 1 + a_1 + a_1 a_2 + .. + a_1 .. a_k; a_j: how often position j is accepted
    seconds of depth k    the cost model: a pass over all roots and nodes with their context, the draft, the rest

Both come from finished rounds, so every rule stays exact. Positions share what all texts taught, and each text shifts it.
The present depth is left only for one that is clearly better. What is not being done is measured too: now and then a round
decodes plainly between drafted ones, or drafts between plain ones. Such trials may cost `TRIALS` of the time, but for the
first few of each batch size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from draftwood.controllers.cost import CostModel
from draftwood.controllers.draft_cost import DraftCost, like, of_batch
from draftwood.controllers.survival import Survival, log_odds
from draftwood.core.forward import Needs
from draftwood.core.limit import CostEstimate, Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome, Times
from draftwood.errors import need_size

FIRST = 0.7  # acceptance of a position before any was judged
BETTER = 1.03  # times as many tokens a second: what another depth must promise
EVERY = 8  # rounds between two choices
TRIALS = 0.01  # share of the time that trials of the alternative may cost
APART = 8  # rounds between two trials, at least
YOUNG = 6  # rounds with drafts, and without, that a batch size gets before trials must pay for themselves
_FIRST_SIZES = (2, 4)  # depths of the first trials
_UNSAID = 0.5  # the estimate of a drafter that says nothing
_FORGET = 0.98  # weight of the past per round
_FOLLOW = 0.08  # steps of a text's own shift


@dataclass(slots=True)
class State:
    """Batch-wide, but for the shifts of `survival`."""

    own: CostModel | None
    survival: Survival
    drafts: dict[int, DraftCost] = field(default_factory=dict[int, DraftCost])  # by batch size
    batch: int = 0  # for which the depth was chosen
    depth: int = 0  # the choice
    best: int = 0  # the best depth that drafts
    left: int = 0  # rounds until the next choice
    since: int = 0  # rounds since the last trial
    allowed: float = 0.0  # seconds that trials may still cost
    seen: dict[tuple[int, bool], int] = field(
        default_factory=dict[Any, int]
    )  # rounds by batch size, with drafts or not

    @property
    def calibration_error(self) -> float | None:
        return self.survival.calibration.error


@dataclass(frozen=True, slots=True)
class Goodput:
    """At most `depth` levels of `width` nodes each. `times`: rounds of one sequence with this drafter that were timed side
    by side, where the cost model begins; without any it is the engine's. `plain` False: every round drafts."""

    depth: int
    width: int = 1
    times: tuple[Times, ...] = ()
    plain: bool = True
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_size("Goodput", depth=(self.depth, 0), width=(self.width, 1))

    def init(self, slots: int) -> State:
        own = CostModel(forget=_FORGET) if self.times else None
        for each in self.times:
            if own is not None:
                own.observe(each)
        drafts = {} if own is None else {1: own.draft}
        return State(own, Survival(offset=log_odds(FIRST), follow=_FOLLOW), drafts)

    def plan(self, state: State, rnd: Round, load: Load) -> Limit:
        if state.own is not None and rnd.batch:
            state.own.draft = of_batch(state.drafts, rnd.batch, self.depth)
        depth = self._depth(state, rnd, load) if rnd.batch and self.depth else 0
        budgets = [depth * self.width] * rnd.batch
        return Limit.of([depth] * rnd.batch, budgets, rnd.device, cost_model=state.own)

    def _depth(self, state: State, rnd: Round, load: Load) -> int:
        cost: CostEstimate = load.cost_model if state.own is None else state.own
        if state.batch != rnd.batch or not state.left:
            self._choose(state, rnd, load, cost)
        state.left -= 1
        state.since += 1
        if not self.plain:
            return state.depth
        tried = state.seen.get((like(rnd.batch), not state.depth), 0)
        if tried < YOUNG and state.since > 1:  # times of other moments and other batches say little about this one
            state.since = 0
            return 0 if state.depth else min(_FIRST_SIZES[tried % len(_FIRST_SIZES)], self.depth)
        if state.since <= APART:
            return state.depth
        other = 0 if state.depth else state.best
        rates = self._rates(state, rnd, load, cost)
        loss = self._seconds(rnd, load, cost, other) * max(0.0, 1 - rates[other] / rates[state.depth])
        if loss > state.allowed:
            return state.depth
        state.allowed -= loss
        state.since = 0
        return other

    def _choose(self, state: State, rnd: Round, load: Load, cost: CostEstimate) -> None:
        """The best depth; the present one unless another is clearly better. Plain decoding needs no margin: nothing that is
        expected to be slower is done on purpose."""
        rates = self._rates(state, rnd, load, cost)
        state.best = max(range(1, self.depth + 1), key=rates.__getitem__)
        found = state.best if rates[state.best] > rates[0] or not self.plain else 0
        if state.batch and found and rates[found] < BETTER * rates[state.depth] and (state.depth or self.plain):
            found = state.depth
        state.batch, state.depth, state.left = rnd.batch, found, EVERY

    def _rates(self, state: State, rnd: Round, load: Load, cost: CostEstimate) -> list[float]:
        """Tokens a second of each depth, from none on."""
        tokens = expected(state.survival, rnd.host_slots, self.depth)
        return [count / self._seconds(rnd, load, cost, depth) for depth, count in enumerate(tokens)]

    def _seconds(self, rnd: Round, load: Load, cost: CostEstimate, depth: int) -> float:
        nodes = rnd.batch * depth * self.width
        seconds = cost.pass_seconds(rnd.batch + nodes, load.context) + cost.rest_seconds()
        return max(seconds + cost.draft_seconds(depth, nodes), 1e-9)

    def update(self, state: State, rnd: Round, outcome: Outcome) -> None:
        times = outcome.seconds
        if state.own is not None and not times.prompt_tokens:
            state.own.observe(times)
        state.allowed += TRIALS * times.total
        if not times.prompt_tokens and rnd.batch:
            which = like(rnd.batch), any(outcome.deepest)
            state.seen[which] = state.seen.get(which, 0) + 1
        for slot, levels, kept in zip(rnd.host_slots, outcome.judged, outcome.accepted, strict=True):
            for position in range(min(levels, kept + 1)):
                state.survival.learn(slot, _UNSAID, position < kept, position)
            if not levels:
                state.survival.rest(slot)

    def free(self, state: State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.survival.free(slot)
        state.batch = 0  # others are chosen for next


def expected(survival: Survival, slots: Sequence[int], depth: int) -> list[float]:
    """Tokens that a round of each depth emits for all these sequences together, from depth 0 on."""
    tokens = [float(len(slots))] * (depth + 1)
    for slot in slots:
        alive, sum_alive = 1.0, 0.0
        for position in range(depth):
            alive *= survival.chance(slot, _UNSAID, position)
            sum_alive += alive
            tokens[position + 1] += sum_alive
    return tokens
