"""Limit: how much a round may guess. Load: what a controller may look at when it decides."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.host import host
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Times


@dataclass(frozen=True, slots=True)
class Tier:
    """Host numbers that fix every shape of a round."""

    depth: int  # drafted levels
    nodes: int  # tree nodes, the root included


class Proceed(Protocol):
    """May these frontier nodes get children? Asked before the draft pass over them, with the draft's hidden states of their
    parents (None before the first pass). Sees only what is drawn, stops only future draws: exact by non-anticipation."""

    def __call__(
        self, tree: TokenTree, frontier: Int[Tensor, "B F"], above: Float[Tensor, "B F H"] | None
    ) -> Bool[Tensor, "B F"]: ...


def always(tree: TokenTree, frontier: Int[Tensor, "B F"], above: Float[Tensor, "B F H"] | None) -> Bool[Tensor, "B F"]:
    """Grow to the limit."""
    return torch.ones_like(frontier, dtype=torch.bool)


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """Depth and nodes of each sequence under one tier. Depth 0 is an ordinary decoding step."""

    tier: Tier
    depth: Int[Tensor, "B"]
    nodes: Int[Tensor, "B"]  # drafted nodes, the root not counted
    total: int | None = None  # one budget of drafted nodes for the whole batch
    price: Float[Tensor, "C"] | None = None  # seconds of a pass of c tokens
    proceed: Proceed = always

    @staticmethod
    def of(
        depth: list[int], nodes: list[int], device: torch.device | str = "cpu", proceed: Proceed = always
    ) -> "Limit":
        """From host numbers; the tier holds the largest of them."""
        nodes = [n if d else 0 for d, n in zip(depth, nodes, strict=True)]
        tier = Tier(max(depth, default=0), 1 + max(nodes, default=0))
        deep, wide = (torch.tensor(x, dtype=torch.int64, device=device) for x in (depth, nodes))
        return Limit(tier, deep, wide, proceed=proceed)

    def take(self, sequences: Int[Tensor, "R"]) -> "Limit":
        """Some sequences, under the same tier."""
        return replace(self, depth=self.depth[sequences], nodes=self.nodes[sequences])

    def at_most(self, depth: Int[Tensor, "B"], nodes: Int[Tensor, "B"]) -> "Limit":
        """The same limit, no larger than this per sequence: what the request or the cache still has room for."""
        deep = torch.minimum(self.depth, depth).clamp_min(0)
        wide = torch.minimum(self.nodes, nodes).clamp_min(0)
        wide = torch.where(deep > 0, wide, 0)
        depth_most, nodes_most = host(torch.stack([deep, wide]).amax(1)) if deep.shape[0] else (0, 0)
        tier = Tier(depth_most, 1 + nodes_most)
        return Limit(tier, deep, wide, self.total, self.price, self.proceed)


class CostEstimate(Protocol):
    """What time costs on this machine, as measured."""

    def pass_seconds(self, tokens: int, context: int = 0) -> float: ...
    def draft_seconds(self, passes: int, nodes: int | None = None) -> float: ...
    def rest_seconds(self) -> float: ...
    def observe(self, times: Times) -> None: ...


@dataclass(frozen=True, slots=True)
class Load:
    """The state of the engine when a round is planned."""

    cost_model: CostEstimate
    batch_size: int  # sequences decoding in this round
    waiting: int  # requests not yet admitted
    context: int  # cache entries of the round's sequences together
    prompt_tokens: int = 0  # prompt tokens that ride in this pass
    spare: int | None = None  # cache entries still free; None = plenty
