"""Budget: the nodes of all requests compete for one verification, ranked by their chances to be accepted.

    request 0   .9  .7  .3        draft deeper than is verified, rank (request, position) by the chance of the whole path
    request 1   .5  .2  .1        as it was known before the node was drawn, and keep the best: here .9 .7 .5 .3

`inner` says how deep to draft, or not at all; `extra` levels are drafted beyond it. Kept are as many nodes as `inner` would
have had verified (`paying` False: the pass is no larger), or as many as pay by the cost model
(`paying`): that of `inner` if it has one.

Chances are the drafter's, corrected by what finished rounds showed. The probability of a drawn node's own token is never
looked at: a cut by it would bias the output. For trees of given nodes a score may hold it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from draftwood.controllers.estimates.node_chances import NodeChances, price
from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.protocols import LengthController
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.errors import need_size


@dataclass(slots=True)
class State:
    inner: Any
    chances: NodeChances = field(default_factory=NodeChances)

    @property
    def calibration_error(self) -> float | None:
        return self.chances.calibration.error


@dataclass(frozen=True, slots=True)
class Budget:
    """`width`: nodes of a level that a sequence may have."""

    inner: LengthController
    extra: int = 1
    width: int = 1
    paying: bool = False

    def __post_init__(self) -> None:
        need_size("Budget", extra=(self.extra, 0), width=(self.width, 1))

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    def init(self, slots: int) -> State:
        return State(self.inner.init(slots))

    def plan(self, state: State, rnd: Round, load: Load) -> Limit:
        inner = self.inner.plan(state.inner, rnd, load)
        if not any(inner.depths):
            return inner
        depths = [depth + self.extra if depth else 0 for depth in inner.depths]
        budgets = [depth * self.width for depth in depths]
        limit = replace(inner, depths=tuple(depths), budgets=tuple(budgets))
        limit = replace(limit, correction=state.chances.correction(rnd, max(depths)))
        if self.paying:
            return replace(limit, price=price(inner.cost_model or load.cost_model, rnd, load, limit))
        return replace(limit, total=sum(inner.budgets))

    def update(self, state: State, rnd: Round, outcome: Outcome) -> None:
        self.inner.update(state.inner, rnd, outcome)
        state.chances.learn(rnd, outcome)

    def free(self, state: State, slots: Sequence[int]) -> None:
        self.inner.free(state.inner, slots)
        state.chances.free(slots)
