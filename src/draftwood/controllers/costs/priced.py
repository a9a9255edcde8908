"""Priced: limits that carry the cost of a round, for drafters that choose among drafts themselves.

Only the ratios of costs matter to a choice, and plain rounds are what they are ratios to. So a plain round sets the unit, a
second of the model in seconds of now, and a drafted round corrects the model in that unit. A machine that slows down as a
whole changes the unit alone.

The timed rounds may be wrong, for instance because other processes were busy, and then they are wrong alike. So the first
drafted rounds correct all sizes together. What is not drafted is not corrected: after some plain rounds a trial offers
drafts as if they cost nothing, until a few were made; where only copies were drafted, until the drafter's model made a few.
What trials lose is measured, and they may lose a few plain rounds at first and a small share of the time from then on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from draftwood.controllers.costs.cost import LONGEST, CostModel
from draftwood.controllers.costs.draft_cost import DraftCost, of_batch
from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome, Times
from draftwood.errors import need_size

_WEIGHT, _FORGET = 20, 0.98  # rounds that each timed one counts as; weight of the past per round
_TRUST, _SETTLED = (
    3,
    50,
)  # drafted rounds that all timed ones count as, where they are wrong alike; rounds one counts among
_FOLLOW, _JUMP = 0.2, 4.0  # share of a round's surprise that the unit follows, and the most that one round counts
_APART, _TRIAL = 8, 3  # plain rounds before a trial, and drafted rounds of it
_FIRST, _LOSS = 2.0, 0.01  # plain rounds that the first trials may lose; share of the time that later ones may
_UNKNOWN = 4  # drafted rounds after which a plain one sets the unit, if there was none


@dataclass(frozen=True, slots=True)
class AsIfFree:
    """The costs of a trial: a draft, and the tokens that it adds to a pass of `batch` tokens, cost nothing."""

    model: CostModel
    batch: int

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        return self.model.pass_seconds(min(tokens, self.batch), context)

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        return 0.0

    def rest_seconds(self) -> float:
        return self.model.rest_seconds()

    def observe(self, times: Times) -> None:
        return None


@dataclass(slots=True)
class _State:
    model: CostModel
    unit: float = 1.0  # a second of the model, in seconds of now
    units: int = 0  # plain rounds that set it
    plain: int = 0  # rounds without drafts since the last one with some
    idle: int = 0  # the same, since a draft that ran a model
    drafted: int = 0  # rounds with drafts that corrected the model, since the last trial began
    unknown: int = 0  # rounds with drafts before there was a unit
    left: int = 0  # drafts until the present trial ends; 0: there is none
    every: bool = True  # draft counts in the present trial, or only one that ran a model
    allowed: float = _FIRST  # plain rounds that trials may still lose
    free: AsIfFree | None = None  # what the present trial tells drafters
    drafts: dict[int, DraftCost] = field(default_factory=dict[int, DraftCost])  # by batch size


@dataclass(frozen=True, slots=True)
class Priced:
    """At most `depth` levels and `nodes` nodes. `times`: rounds that were timed side by side; the cost model begins with
    them and follows the engine's rounds from there."""

    depth: int
    nodes: int
    times: tuple[Times, ...] = ()
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_size("Priced", depth=(self.depth, 0), nodes=(self.nodes, 0))

    def init(self, slots: int) -> _State:
        state = _State(CostModel(forget=_FORGET))
        for _ in range(_WEIGHT):
            for each in self.times:
                state.model.observe(each)
        state.drafts[1] = state.model.draft
        return state

    def plan(self, state: _State, rnd: Round, load: Load) -> Limit:
        if rnd.batch and self.depth:
            state.model.draft = of_batch(state.drafts, rnd.batch, self.depth)
        if not state.units and state.unknown >= _UNKNOWN and not load.prompt_tokens:
            return Limit.of([0] * rnd.batch, [0] * rnd.batch, rnd.device, cost_model=state.model)
        if state.left and (state.free is None or state.free.batch != rnd.batch):
            state.free = AsIfFree(state.model, rnd.batch)
        cost = state.free if state.left else state.model
        return Limit.of([self.depth] * rnd.batch, [self.nodes] * rnd.batch, rnd.device, cost_model=cost)

    def update(self, state: _State, rnd: Round, outcome: Outcome) -> None:
        times = outcome.seconds
        seconds, expected = times["score"], state.model.pass_seconds(times.tokens, times.context)
        if times.prompt_tokens or not rnd.batch or not 0 < seconds < LONGEST:
            return
        state.allowed = min(state.allowed + _LOSS * _in_plain_rounds(state, rnd, times), _FIRST)
        if times.draft_nodes:
            self._drafted(state, rnd, outcome)
            return
        surprise = min(max(seconds / expected / state.unit, 1 / _JUMP), _JUMP)
        state.unit *= surprise ** max(_FOLLOW, 1 / (1 + state.units))
        state.units += 1
        state.plain += 1
        state.idle += 1
        runs_a_model = any(each.draft_passes for each in self.times)
        if state.allowed > 0 and not state.left and max(state.plain, state.idle if runs_a_model else 0) >= _APART:
            state.left, state.every, state.free = _TRIAL, state.plain >= _APART, None

    def _drafted(self, state: _State, rnd: Round, outcome: Outcome) -> None:
        times = outcome.seconds
        state.plain = 0
        state.idle = 0 if times.draft_passes else state.idle
        if not state.units:
            state.unknown += 1
            return
        if state.left:
            emitted = sum(map(len, outcome.emitted)) / rnd.batch
            state.allowed -= max(_in_plain_rounds(state, rnd, times) - emitted, 0.0)
            if state.left == _TRIAL:
                state.drafted = 0
            if state.every or times.draft_passes:
                state.left -= 1
            if state.allowed <= 0:
                state.left = 0
        state.drafted += 1
        shown = replace(times, seconds={part: s / state.unit for part, s in times.seconds.items()})
        state.model.correct(shown, rnd.batch, 1 / min(_TRUST + state.drafted - 1, _SETTLED), _JUMP)
        state.model.observe(shown)

    def free(self, state: _State, slots: Sequence[int]) -> None:
        return None


def _in_plain_rounds(state: _State, rnd: Round, times: Times) -> float:
    """How many plain rounds of these sequences would have taken as long."""
    plain = state.model.pass_seconds(rnd.batch, times.context) + state.model.rest_seconds()
    return times.total / (plain * state.unit) if plain > 0 else 0.0
