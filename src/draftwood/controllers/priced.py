"""Priced: limits that carry the cost of a round, for drafters that choose among drafts themselves."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.controllers.cost import CostModel
from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome, Times
from draftwood.errors import need_size


@dataclass(frozen=True, slots=True)
class Priced:
    """At most `depth` levels and `nodes` nodes. `times`: rounds that were timed side by side; the cost model begins with
    them and follows the rounds of the engine from there."""

    depth: int
    nodes: int
    times: tuple[Times, ...] = ()
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_size("Priced", depth=(self.depth, 0), nodes=(self.nodes, 0))

    def init(self, slots: int) -> CostModel:
        model = CostModel()
        for _ in range(4):  # so that a first busy round does not outweigh them
            for each in self.times:
                model.observe(each)
        return model

    def plan(self, state: CostModel, rnd: Round, load: Load) -> Limit:
        return Limit.of([self.depth] * rnd.batch, [self.nodes] * rnd.batch, rnd.device, cost_model=state)

    def update(self, state: CostModel, rnd: Round, outcome: Outcome) -> None:
        if not outcome.seconds.prompt_tokens:
            state.observe(outcome.seconds)

    def free(self, state: CostModel, slots: Sequence[int]) -> None:
        return None
