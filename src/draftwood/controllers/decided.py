"""Decided: levels are added as long as somebody believes in one of the newest nodes.

    level 1  a .7   b .2      one of them is above the threshold: both get children
    level 2  c .3   d .1      none is: these nodes stay, and nothing is drawn below them

The judge reads nodes that are drawn already and stops only draws that have not happened, so whatever it says, the rule
stays exact. It must never take back a level that it has seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.proposal import DraftProbs
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.errors import DrafterError, OptionError, need_size

Judge = Callable[[Float[Tensor, "B F H"]], Float[Tensor, "B F"]]
"""The draft's hidden states of some nodes -> for each the chance that a child of it will be kept."""


@dataclass(frozen=True, slots=True)
class Decided:
    """At most `depth` levels and `nodes` drafted nodes; at least one level. A row goes on if any node of its newest level
    scores above `threshold`."""

    depth: int
    nodes: int
    judge: Judge
    threshold: float = 0.4
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_size("Decided", depth=(self.depth, 0), nodes=(self.nodes, 0))
        if not 0 <= self.threshold <= 1:
            raise OptionError(f"threshold cannot be {self.threshold}\nhint: a probability, from 0 to 1")

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        return Limit.of([self.depth] * rnd.batch, [self.nodes] * rnd.batch, rnd.device, self.proceed)

    def proceed(
        self, tree: TokenTree, frontier: Int[Tensor, "B F"], q: DraftProbs, hidden: Float[Tensor, "B F H"] | None
    ) -> Bool[Tensor, "B F"]:
        at_root = frontier == 0
        if tree.num_nodes == 1:  # the first level is drawn unasked
            return at_root
        if hidden is None:
            raise DrafterError("Decided judges hidden states, and the drafter shows none")
        believed = (self.judge(hidden) > self.threshold) & (frontier >= 0)
        return at_root | believed.any(1, keepdim=True)

    def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None
