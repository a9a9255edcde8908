"""LearnedStop: levels are added as long as one of the newest nodes is likely to be accepted.

    root     .7               a token drawn here is accepted with .7, above the threshold: a draft pass over level 1
    level 1  a .3   b .1      none is above it: level 2, drawn from that pass, stays, and no pass is run over it

The judge is asked before a pass. It reads the hidden states of the newest nodes' parents, so no pass is run whose result
would not be used. It sees what is drawn already and stops only draws that have not happened, so whatever it says, the rule
stays exact. It must never take back a level that it has seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.errors import DrafterError, OptionError, need_size

Judge = Callable[[Float[Tensor, "B F H"]], Float[Tensor, "B F"]]
"""The draft's hidden states of some nodes -> for each the chance that a token drawn below it is accepted."""


@dataclass(frozen=True, slots=True)
class LearnedStop:
    """At most `depth` levels and `nodes` drafted nodes; at least one level. A sequence goes on if any node of its newest
    level is accepted with a chance above `threshold`."""

    depth: int
    nodes: int
    judge: Judge
    threshold: float = 0.4
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_size("LearnedStop", depth=(self.depth, 0), nodes=(self.nodes, 0))
        if not 0 <= self.threshold <= 1:
            raise OptionError(f"threshold cannot be {self.threshold}\nhint: a probability, from 0 to 1")

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        return Limit.of([self.depth] * rnd.batch, [self.nodes] * rnd.batch, rnd.device, self.proceed)

    def proceed(
        self,
        tree: TokenTree,
        frontier: Int[Tensor, "B F"],
        above: Float[Tensor, "B F H"] | None,
        own: Float[Tensor, "B F"],
    ) -> Bool[Tensor, "B F"]:
        if tree.num_nodes == 1:  # the first level is always drawn
            return frontier == 0
        if above is None:
            raise DrafterError("LearnedStop judges hidden states, and the drafter shows none")
        likely = (self.judge(above) > self.threshold) & (frontier >= 0)
        return likely.any(1, keepdim=True).expand_as(frontier)

    def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None
