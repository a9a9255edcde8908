"""Limit: how much a round may guess. Load: what a controller decides by."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.competition import Correction, Price
from draftwood.core.host import put
from draftwood.core.tree import TokenTree
from draftwood.core.verdict import Times

_EXACT = 8  # sizes that are not rounded


@dataclass(frozen=True, slots=True)
class Tier:
    """Host numbers that fix every shape of a round."""

    depth: int  # drafted levels
    nodes: int  # tree nodes, the root included


class Proceed(Protocol):
    """May these frontier nodes get children? Asked before the draft pass over them, with the draft's hidden states of their
    parents (None before the first pass), and with the probability that the draft gave each node's own token (1 for a root).
    Sees only what is drawn, stops only future draws: exact by non-anticipation. One that differs by sequence is a
    `BySequence` too."""

    def __call__(
        self,
        tree: TokenTree,
        frontier: Int[Tensor, "B F"],
        above: Float[Tensor, "B F H"] | None,
        own: Float[Tensor, "B F"],
    ) -> Bool[Tensor, "B F"]: ...


@runtime_checkable
class BySequence(Protocol):
    """A `Proceed` that differs by sequence."""

    def take(self, sequences: Sequence[int]) -> Proceed:
        """Of these sequences, in order."""
        ...


def always(
    tree: TokenTree, frontier: Int[Tensor, "B F"], above: Float[Tensor, "B F H"] | None, own: Float[Tensor, "B F"]
) -> Bool[Tensor, "B F"]:
    """Grow to the limit."""
    return torch.ones_like(frontier, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Limit:
    """Depth and drafted nodes of each sequence. Depth 0 is an ordinary decoding step. Numbers are on the host, because they
    fix shapes; `depth` and `nodes` are tensors, for comparison with trees."""

    depths: tuple[int, ...]
    budgets: tuple[int, ...]  # drafted nodes, the root not counted
    device: torch.device | str = "cpu"
    proceed: Proceed = always
    total: int | None = None  # drafted nodes of the whole batch; None: what the sequences may have together
    planned: Tier | None = None  # shapes that stay although the sequences may have less
    cost_model: "CostEstimate | None" = None  # what a round costs, for drafters that choose among drafts
    least: float = 0.0  # given nodes whose path has less chance, by the drafter's estimate, get no children
    surer: tuple[float, ...] = ()  # nodes whose own token got less from the draft get no children, by sequence
    # Depths that only the device knows, below those of the host, which fix the shapes. They are never read.
    shorter: Int[Tensor, "B"] | None = None
    price: Price | None = None  # the best nodes of the batch are kept as long as each pays
    correction: Correction | None = None  # of scores, where nodes of several sequences are compared

    @staticmethod
    def of(
        depth: Sequence[int],
        nodes: Sequence[int],
        device: torch.device | str = "cpu",
        proceed: Proceed = always,
        total: int | None = None,
        cost_model: "CostEstimate | None" = None,
        least: float = 0.0,
        surer: Sequence[float] = (),
    ) -> "Limit":
        budgets = tuple(n if d else 0 for d, n in zip(depth, nodes, strict=True))
        return Limit(tuple(depth), budgets, device, proceed, total, None, cost_model, least, tuple(surer))

    @cached_property
    def tier(self) -> Tier:
        """The largest depth and budget, or what was planned."""
        if self.planned is not None:
            return self.planned
        return Tier(max(self.depths, default=0), 1 + max(self.budgets, default=0))

    @cached_property
    def depth(self) -> Int[Tensor, "B"]:
        depth = put(self.depths, self.device)
        return depth if self.shorter is None else torch.minimum(depth, self.shorter)

    @property
    def shallowest(self) -> int:
        """Levels that every sequence may have, as far as the host knows."""
        return 0 if self.shorter is not None else min(self.depths, default=0)

    @cached_property
    def nodes(self) -> Int[Tensor, "B"]:
        return put(self.budgets, self.device)

    @property
    def watches(self) -> bool:
        """Whether a draft may end before its depth because of what it holds."""
        return self.proceed is not always or bool(self.surer)

    @property
    def shared(self) -> bool:
        """Whether nodes of several sequences compete: for a budget smaller than those of the sequences together, or by what
        they cost."""
        return self.price is not None or (self.total is not None and sum(self.budgets) > self.total)

    @property
    def competing(self) -> tuple[Tensor, ...]:
        """The tensors by which they do."""
        correction = () if self.correction is None else (self.correction.slope, self.correction.offset)
        return correction if self.price is None else (*correction, self.price.seconds)

    def with_tensors(self, depth: Int[Tensor, "B"], nodes: Int[Tensor, "B"], *competing: Tensor) -> "Limit":
        """The same limit, its numbers taken from these tensors instead of being put on the device."""
        other = replace(
            self,
            correction=None if self.correction is None else Correction(*competing[:2]),
            price=None if self.price is None else Price(competing[-1], self.price.tokens),
        )
        other.__dict__.update(depth=depth, nodes=nodes)
        return other

    def take(self, sequences: Sequence[int]) -> "Limit":
        """Some sequences, in order."""
        if len(sequences) == len(self.depths):
            return self
        depths, budgets = (tuple(x[b] for b in sequences) for x in (self.depths, self.budgets))
        surer = tuple(self.surer[b] for b in sequences) if self.surer else ()
        proceed = self.proceed.take(sequences) if isinstance(self.proceed, BySequence) else self.proceed
        shorter = None if self.shorter is None else self.shorter[put(sequences, self.shorter.device)]
        correction = None if self.correction is None else self.correction.take(sequences)
        return replace(
            self,
            depths=depths,
            budgets=budgets,
            surer=surer,
            proceed=proceed,
            shorter=shorter,
            correction=correction,
        )

    def at_most(self, depth: Sequence[int], nodes: Sequence[int]) -> "Limit":
        """The same limit, no larger than this per sequence: what the request or the cache still has room for. On an
        accelerator the shapes stay as planned and are rounded, because each shape costs a capture."""
        deep = [max(min(a, b), 0) for a, b in zip(self.depths, depth, strict=True)]
        wide = [max(min(a, b), 0) for a, b in zip(self.budgets, nodes, strict=True)]
        cut = Limit.of(deep, wide, self.device, self.proceed, self.total, self.cost_model, self.least, self.surer)
        if self.shorter is not None or self.price is not None or self.correction is not None:
            cut = replace(cut, shorter=self.shorter, price=self.price, correction=self.correction)
        if hosts.on_host(self.device):
            return cut
        return replace(cut, planned=Tier(_rounded(self.tier.depth), 1 + _rounded(self.tier.nodes - 1)))


def _rounded(x: int) -> int:
    """Small numbers as they are, large ones up to a power of two."""
    return x if x <= _EXACT else 1 << (x - 1).bit_length()


class CostEstimate(Protocol):
    """Measured times on this machine."""

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
    prompt_tokens: int = 0  # prompt tokens in this pass
    spare: int | None = None  # cache entries still free; None = plenty
