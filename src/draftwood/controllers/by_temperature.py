"""ByTemperature: sampled sequences draft chains of a length that never changes, greedy rounds what another controller says.

Under a rule that judges draws the text of a seed depends on how much was drafted. A length that follows the clock would give
another text every time, so it is chosen once, before the first request.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.protocols import LengthController
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome


@dataclass(frozen=True, slots=True)
class ByTemperature:
    """`greedy`: the controller of rounds in which every sequence is greedy. `depths`: temperatures, rising, and the length
    of a chain up to each; the last one serves all above. Greedy sequences beside sampled ones have the first length."""

    greedy: LengthController
    depths: tuple[tuple[float, int], ...]

    @property
    def needs(self) -> Needs:
        return self.greedy.needs

    def init(self, slots: int) -> Any:
        return self.greedy.init(slots)

    def plan(self, state: Any, rnd: Round, load: Load) -> Limit:
        if rnd.sampler.all_greedy:
            return self.greedy.plan(state, rnd, load)
        edges = [temperature for temperature, _ in self.depths[:-1]]
        depths = [self.depths[bisect_left(edges, r.params.temperature)][1] for r in rnd.requests]
        return Limit.of(depths, depths, rnd.device)

    def update(self, state: Any, rnd: Round, outcome: Outcome) -> None:
        if rnd.sampler.all_greedy:
            self.greedy.update(state, rnd, outcome)

    def free(self, state: Any, slots: Sequence[int]) -> None:
        self.greedy.free(state, slots)
