"""Fixed: the same size every round."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.errors import need_at_least, need_size


@dataclass(frozen=True, slots=True)
class Fixed:
    """`depth` levels and at most `nodes` drafted nodes (None: a chain of that depth). Depth 0 never drafts. `total`: of all
    sequences together only so many drafted nodes, the best ones."""

    depth: int
    nodes: int | None = None
    total: int | None = None
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_size("Fixed", depth=(self.depth, 0), nodes=(self.depth if self.nodes is None else self.nodes, 0))
        if self.total is not None:
            need_at_least("Fixed", total=(self.total, 0))

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        nodes = self.depth if self.nodes is None else self.nodes
        return Limit.of([self.depth] * rnd.batch, [nodes] * rnd.batch, rnd.device, total=self.total)

    def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None
