"""PredictedLength: a net says before the draft how long it should be.

    plan    k = clamp(round(net(E[x_j], f_j)), 0, depth)      x_j: the token after which the target emitted the root

All that the net sees is committed, so every rule stays exact. With k = 0 a round is plain decoding, and so is one that has
no feature of its root yet: the first of a request, or one after a preemption.

On the host k is read, and the draft has as many passes. On an accelerator it stays on the device, `Limit.shorter`: the
shapes of the round are those of `depth`, and the nodes behind k are not drafted.

`unsure`: a draft ends only where it is longer than k and the product of the probabilities that the drafter gave to its
tokens is below this too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.controllers.stopping.path_product import PathProduct
from draftwood.core import host as hosts
from draftwood.core.forward import FINAL, Needs
from draftwood.core.host import host, put
from draftwood.core.last_rounds import LastRounds, forget, just_ran, note
from draftwood.core.limit import Limit, Load
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Outcome
from draftwood.errors import OptionError, need_size

EMBEDDING = 0
"""The tap of a token's embedding."""

Predictor = Callable[[Float[Tensor, "B H"], Float[Tensor, "B H"]], Float[Tensor, "B"]]
"""(embedding, final feature) of the tokens before the roots -> how many tokens to draft, not rounded."""


@dataclass(frozen=True, slots=True)
class PredictedLength:
    """Chains of at most `depth` tokens."""

    depth: int
    predictor: Predictor
    unsure: float | None = None
    needs: Needs = Needs(origin=frozenset({EMBEDDING, FINAL}))

    def __post_init__(self) -> None:
        need_size("PredictedLength", depth=(self.depth, 0))
        if self.unsure is not None and not 0 <= self.unsure <= 1:
            raise OptionError(f"PredictedLength: unsure cannot be {self.unsure}\nhint: a probability, from 0 to 1")

    def init(self, slots: int) -> LastRounds:
        return {}

    def plan(self, state: LastRounds, rnd: Round, load: Load) -> Limit:
        most = [self.depth if fresh else 0 for fresh in just_ran(state, rnd)]
        if not any(most):
            return Limit.of(most, most, rnd.device)
        k = self.lengths(rnd)
        if self.unsure is not None:
            return Limit.of(most, most, rnd.device, _PastLength(k, self.unsure))
        if hosts.on_host(rnd.device):
            most = [min(pair) for pair in zip(most, host(k), strict=True)]
            return Limit.of(most, most, rnd.device)
        return replace(Limit.of(most, most, rnd.device), shorter=k)

    def lengths(self, rnd: Round) -> Int[Tensor, "B"]:
        """Half a token is rounded to the even number; what is not a number counts as 0."""
        k = self.predictor(rnd.origin[EMBEDDING], rnd.origin[FINAL])
        return torch.nan_to_num(k, nan=0.0).round().clamp(0, self.depth).long()

    def update(self, state: LastRounds, rnd: Round, outcome: Outcome) -> None:
        note(state, rnd, outcome)

    def free(self, state: LastRounds, slots: Sequence[int]) -> None:
        forget(state, slots)


@dataclass(frozen=True, slots=True, eq=False)
class _PastLength:
    """As `Limit.proceed`."""

    k: Int[Tensor, "B"]
    unsure: float
    product: PathProduct = field(default_factory=PathProduct)

    def __call__(
        self,
        tree: TokenTree,
        frontier: Int[Tensor, "B F"],
        above: Float[Tensor, "B F H"] | None,
        own: Float[Tensor, "B F"],
    ) -> Bool[Tensor, "B F"]:
        sure = self.product.at(tree, frontier, own) >= self.unsure
        within = tree.depths().gather(1, frontier.clamp_min(0)) < self.k[:, None]
        return (frontier >= 0) & (within | sure)

    def take(self, sequences: Sequence[int]) -> "_PastLength":
        return _PastLength(self.k[put(sequences, self.k.device)], self.unsure)
