"""RejectionRisk: a chain goes on until it is likely that one of its tokens is rejected.

    root ─ a ─ b ─ c          A(a) .9, A(b) .6: behind c the risk is 1 - .9 * .6 = .46; above the threshold c is the last

A(x) is what a net says of the draft's hidden state after reading x: how likely x is accepted. The newest token has not been
read yet, so it does not count, and no draft pass is run for the net alone. It sees tokens that are drawn already and stops
only draws that have not happened, so whatever it says, the rule stays exact. Nothing is read from a device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.controllers.stopping.path_product import PathProduct
from draftwood.core.forward import Needs
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.errors import DrafterError, OptionError, need_size

Judge = Callable[[Float[Tensor, "B F H"]], Float[Tensor, "B F"]]
"""The draft's hidden states of some tokens -> how likely each of them is accepted."""


@dataclass(frozen=True, slots=True)
class RejectionRisk:
    """Drafts of `least` to `depth` tokens. `threshold` 1 never stops."""

    depth: int
    judge: Judge
    threshold: float
    least: int = 2
    needs: Needs = Needs()

    def __post_init__(self) -> None:
        need_size("RejectionRisk", depth=(self.depth, 0), least=(self.least, 0))
        if not 0 <= self.threshold <= 1:
            raise OptionError(f"RejectionRisk: threshold cannot be {self.threshold}\nhint: a probability, from 0 to 1")

    def init(self, slots: int) -> None:
        return None

    def plan(self, state: None, rnd: Round, load: Load) -> Limit:
        sizes = [self.depth] * rnd.batch
        return Limit.of(sizes, sizes, rnd.device, _Stop(self.judge, self.threshold, self.least))

    def update(self, state: None, rnd: Round, outcome: Outcome) -> None:
        return None

    def free(self, state: None, slots: Sequence[int]) -> None:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _Stop:
    """As `Limit.proceed`: the products of one draft."""

    judge: Judge
    threshold: float
    least: int
    kept: PathProduct = field(default_factory=PathProduct)

    def __call__(
        self,
        tree: TokenTree,
        frontier: Int[Tensor, "B F"],
        above: Float[Tensor, "B F H"] | None,
        own: Float[Tensor, "B F"],
    ) -> Bool[Tensor, "B F"]:
        node = frontier.clamp_min(0)
        factor = torch.ones_like(own)
        if tree.num_nodes > 1:
            if above is None:
                raise DrafterError("RejectionRisk judges hidden states, and the drafter shows none")
            drafted = tree.parents.gather(1, node) > 0  # the root is accepted already
            factor = torch.where(drafted, self.judge(above).to(own.dtype), 1.0)
        risk = 1 - self.kept.at(tree, frontier, factor)
        early = tree.depths().gather(1, node) < self.least
        return (frontier >= 0) & (early | (risk <= self.threshold))
