"""Priced: limits that carry the cost of a round, for drafters that choose among drafts themselves.

Only the ratios of costs matter to a choice, and plain rounds are what they are ratios to. So a plain round sets the unit, a
second of the model in seconds of now, and a drafted round corrects the model in that unit. A machine that slows down as a
whole changes the unit alone. While nothing is drafted nothing corrects the model, so plain rounds lead it back to what was
timed: drafts that looked too dear for a while are tried again. Where they soon look too dear again, the next trial comes
later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from draftwood.controllers.cost import LONGEST, CostModel
from draftwood.controllers.draft_cost import DraftCost, of_batch
from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome, Times
from draftwood.errors import need_size

_WEIGHT, _FORGET = 20, 0.98  # rounds that each timed one counts as; weight of the past per round
_PATIENCE, _LONGEST = 8, 512  # plain rounds before the model is led back; after trials that failed
_TRIAL = 16  # drafted rounds of a trial that succeeded
_FOLLOW, _JUMP = 0.2, 4.0  # share of a round's surprise that the unit follows, and the most that one round counts


@dataclass(slots=True)
class _State:
    model: CostModel
    unit: float = 1.0  # a second of the model, in seconds of now
    plain: int = 0  # rounds without drafts since the last one with some
    patience: int = _PATIENCE
    drafted: int = 0  # rounds with drafts since the model was led back
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
        return Limit.of([self.depth] * rnd.batch, [self.nodes] * rnd.batch, rnd.device, cost_model=state.model)

    def update(self, state: _State, rnd: Round, outcome: Outcome) -> None:
        times = outcome.seconds
        seconds, expected = times["score"], state.model.pass_seconds(times.tokens, times.context)
        if times.prompt_tokens or not 0 < seconds < LONGEST:
            return
        if times.draft_nodes:
            state.plain = 0
            state.drafted += 1
            state.model.observe(replace(times, seconds={part: s / state.unit for part, s in times.seconds.items()}))
        else:
            state.unit *= min(max(seconds / expected / state.unit, 1 / _JUMP), _JUMP) ** _FOLLOW
            state.plain += 1
            if state.plain == state.patience and state.drafted:
                failed = state.drafted < _TRIAL
                state.patience, state.drafted = min(2 * state.patience, _LONGEST) if failed else _PATIENCE, 0
            if self.times and state.plain > state.patience:
                state.model.observe(self.times[state.plain % len(self.times)])

    def free(self, state: _State, slots: Sequence[int]) -> None:
        return None
