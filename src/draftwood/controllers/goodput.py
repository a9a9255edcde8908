"""Goodput: the depth whose rounds are expected to emit most tokens a second, for the whole batch; depth 0 drafts nothing.

    tokens of depth k     for every sequence 1 + a_1 + a_1 a_2 + .. + a_1 .. a_k; a_j: how often position j is accepted
    seconds of depth k    the cost model: a pass over all roots and nodes with their context, the draft, the rest

Both come from finished rounds, so every rule stays exact. Positions share what all texts taught, and each text shifts it.
Rounds of a depth that bring less than was expected, or take longer, correct its rate. Sequences that are asked for drafts
and never get any count as plain.

The present depth is left only for one that is clearly better. What is not being done is measured too: now and then a round
decodes plainly between drafted ones, or drafts between plain ones. Such trials may cost `TRIALS` of the time, but for the
first few of each batch size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwood.controllers.costs.cost import CostModel
from draftwood.controllers.costs.draft_cost import DraftCost, like, of_batch
from draftwood.controllers.estimates.survival import Survival, log_odds
from draftwood.controllers.measured_rates import MeasuredRates
from draftwood.core.forward import Needs
from draftwood.core.limit import CostEstimate, Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome, Times
from draftwood.errors import need_size

FIRST = 0.7  # acceptance of a position before any was judged
BETTER = 1.03  # times as many tokens a second: what another depth must promise
EVERY = 8  # rounds between two choices
PLAIN_EVERY = 4  # of so many plain rounds one is observed: they are all alike, and each observation costs time
TRIALS = 0.005  # share of the time that trials of the alternative may cost
APART = 8  # rounds between two trials, at least
YOUNG = 6  # rounds with drafts, and without, that a batch size gets before trials must pay for themselves
HOPELESS = 0.85  # of the present rate: an alternative that is expected to be slower gets only `FEW` of them
FEW = 2
MUTE = 3  # rounds in a row in which a sequence was asked for a draft and got none
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
    asked: int = 0  # of this round
    loss: float = 0.0  # seconds that a trial of the alternative is expected to lose
    free_trials: int = YOUNG  # of the alternative
    expected: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])  # tokens, seconds; by depth
    left: int = 0  # rounds until the next choice
    since: int = 0  # rounds since the last trial
    allowed: float = 0.0  # seconds that trials may still cost
    # Rounds by batch size, with drafts or not.
    seen: dict[tuple[int, bool], int] = field(default_factory=dict[tuple[int, bool], int])
    measured: dict[int, MeasuredRates] = field(default_factory=dict[int, MeasuredRates])  # by batch size
    mute: dict[int, int] = field(default_factory=dict[int, int])  # rounds in a row without the draft asked for, by slot

    @property
    def calibration_error(self) -> float | None:
        return self.survival.calibration.error


@dataclass(frozen=True, slots=True)
class Goodput:
    """At most `depth` levels of `width` nodes each. `times`: rounds of one sequence with this drafter that were timed side
    by side, where the cost model begins; without any it is the engine's. `plain` False: every round drafts. `beyond`: levels
    that another controller has drafted beyond the depth. `first`: acceptance of a position before any was judged."""

    depth: int
    width: int = 1
    times: tuple[Times, ...] = ()
    plain: bool = True
    beyond: int = 0
    first: float = FIRST
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_size("Goodput", depth=(self.depth, 0), width=(self.width, 1), beyond=(self.beyond, 0))

    def init(self, slots: int) -> State:
        own = CostModel(forget=_FORGET) if self.times else None
        for each in self.times:
            if own is not None:
                own.observe(each)
        drafts = {} if own is None else {1: own.draft}
        return State(own, Survival(offset=log_odds(self.first), follow=_FOLLOW), drafts)

    def plan(self, state: State, rnd: Round, load: Load) -> Limit:
        if state.own is not None and rnd.batch:
            state.own.draft = of_batch(state.drafts, rnd.batch, self.depth)
        state.asked = self._depth(state, rnd, load) if rnd.batch and self.depth else 0
        budgets = [state.asked * self.width] * rnd.batch
        return Limit.of([state.asked] * rnd.batch, budgets, rnd.device, cost_model=state.own)

    def _depth(self, state: State, rnd: Round, load: Load) -> int:
        if state.batch != rnd.batch or not state.left:
            self._choose(state, rnd, load)
        state.left -= 1
        state.since += 1
        if not self.plain:
            return state.depth
        tried = state.seen.get((like(rnd.batch), not state.depth), 0)
        if tried < state.free_trials and state.since > 1:
            # Times of other moments and other batches say little about this one.
            state.since = 0
            return 0 if state.depth else min(_FIRST_SIZES[tried % len(_FIRST_SIZES)], self.depth)
        if state.since <= APART or state.loss > state.allowed:
            return state.depth
        state.allowed -= state.loss
        state.since = 0
        return 0 if state.depth else state.best

    def _choose(self, state: State, rnd: Round, load: Load) -> None:
        """The best depth; the present one unless another is clearly better. Plain decoding needs no margin: nothing that is
        expected to be slower is done on purpose."""
        cost: CostEstimate = load.cost_model if state.own is None else state.own
        speaking = _speaking(state, rnd)
        slots = speaking or rnd.host_slots  # where none gets drafts, the trials that ask again have their full price
        tokens = self._tokens(state, rnd, slots)
        seconds = [self._seconds(rnd, load, cost, depth, len(slots)) for depth in range(self.depth + 1)]
        measured = state.measured.setdefault(like(rnd.batch), MeasuredRates())
        state.expected = list(zip(tokens, seconds, strict=True))
        rates = [n / s * measured.ratio(depth) for depth, (n, s) in enumerate(state.expected)]
        state.best = max(range(1, self.depth + 1), key=rates.__getitem__)
        found = state.best if (rates[state.best] > rates[0] and speaking) or not self.plain else 0
        if state.batch and found and rates[found] < BETTER * rates[state.depth] and (state.depth or self.plain):
            found = state.depth
        state.batch, state.depth, state.left = rnd.batch, found, EVERY
        other = 0 if found else state.best
        brought = rates[other] / rates[found] if speaking else seconds[0] / seconds[other]
        state.loss = seconds[other] * max(0.0, 1 - brought)
        state.free_trials = (FEW if rates[other] < HOPELESS * rates[found] else YOUNG) if speaking else 0

    def _tokens(self, state: State, rnd: Round, slots: Sequence[int]) -> list[float]:
        """What a round of each depth emits, of which only these slots get drafts."""
        plain = rnd.batch - len(slots)
        return [plain + each for each in expected(state.survival, slots, self.depth)]

    def _seconds(self, rnd: Round, load: Load, cost: CostEstimate, depth: int, drafting: int) -> float:
        nodes = drafting * depth * self.width
        seconds = cost.pass_seconds(rnd.batch + nodes, load.context) + cost.rest_seconds()
        levels = depth + self.beyond if depth and drafting else 0
        return max(seconds + cost.draft_seconds(levels, drafting * levels * self.width), 1e-9)

    def update(self, state: State, rnd: Round, outcome: Outcome) -> None:
        times = outcome.seconds
        drafted = bool(times.draft_passes) or any(outcome.deepest)
        state.allowed += TRIALS * times.total
        if rnd.batch and not times.prompt_tokens and (drafted or state.asked or state.left % PLAIN_EVERY == 0):
            self._observe(state, rnd, outcome, drafted)
        if drafted:
            self._judge(state, rnd, outcome)
        else:
            for slot in rnd.host_slots:
                state.survival.rest(slot)
                if state.asked:
                    state.mute[slot] = state.mute.get(slot, 0) + 1

    @staticmethod
    def _observe(state: State, rnd: Round, outcome: Outcome, drafted: bool) -> None:
        """What a round without a prompt took and brought."""
        times, size = outcome.seconds, like(rnd.batch)
        if state.own is not None:
            state.own.observe(times)
        state.seen[size, drafted] = state.seen.get((size, drafted), 0) + 1
        if state.batch == rnd.batch and drafted == bool(state.asked):
            tokens, seconds = state.expected[state.asked]
            emitted = rnd.batch + sum(outcome.accepted)
            state.measured[size].learn(state.asked, emitted / tokens, times.total / seconds)

    @staticmethod
    def _judge(state: State, rnd: Round, outcome: Outcome) -> None:
        for slot, levels, kept in zip(rnd.host_slots, outcome.judged, outcome.accepted, strict=True):
            for position in range(min(levels, kept + 1)):
                state.survival.learn(slot, _UNSAID, position < kept, position)
            if not levels:
                state.survival.rest(slot)
            state.mute[slot] = 0 if levels else state.mute.get(slot, 0) + 1

    def free(self, state: State, slots: Sequence[int]) -> None:
        for slot in slots:
            state.survival.free(slot)
            state.mute.pop(slot, None)
            state.left = 0  # others are chosen for next


def _speaking(state: State, rnd: Round) -> list[int]:
    """Slots of this round that get drafts when they are asked for."""
    return [slot for slot in rnd.host_slots if state.mute.get(slot, 0) < MUTE]


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
