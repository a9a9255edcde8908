"""Overlapped runs: what proofs and engine tests share."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Loop, Recipe
from draftwood.core.round import Round
from draftwood.testing.contracts import Always
from draftwood.testing.exact import Leaf, leaves
from draftwood.testing.parts.ahead_drafter import AheadDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel
from draftwood.trees.chain import Chain


@dataclass(frozen=True, slots=True, eq=False)
class Counted(AheadDrafter):
    """Notes what rounds began with. Tensors, so that noting reads nothing."""

    bases: list[torch.Tensor] = field(default_factory=list[torch.Tensor], repr=False)

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        if not rnd.in_flight:
            self.bases.append(base.tree.num_drafted())
        return AheadDrafter.propose(self, state, rnd, base, limit, policy)

    @property
    def adopted(self) -> int:
        """How often a sequence began its round with nodes that were drafted ahead."""
        return sum(int((nodes > 0).sum()) for nodes in self.bases)


def blurred(p: Conditional, vocab_size: int, mix: float = 0.5) -> torch.Tensor:
    """A draft that sees one token of the text, mixed with even chances."""
    rows = [[(1 - mix) * x + mix / vocab_size for x in p((0, last))] for last in range(vocab_size)]
    return torch.tensor(rows, dtype=torch.float64)


def bigrams(texts: Sequence[Sequence[int]], vocab_size: int) -> torch.Tensor:
    """Which token follows which in these texts; a little of everything."""
    counts = torch.full((vocab_size, vocab_size), 0.02)
    for text in texts:
        for last, following in pairwise(text):
            counts[last, following] += 1
    return counts / counts.sum(1, keepdim=True)


def overlapped(drafter: Any, rule: Any, depth: int, policy: Any = None, **more: Any) -> Recipe:
    shape = Chain() if policy is None else policy
    size = Always(depth, depth)
    return Recipe(drafter=drafter, policy=shape, verifier=rule, controller=size, loop=Loop.OVERLAPPED, **more)


def overlapped_rounds(drafter: Any, rule: Any, p: Conditional, depth: int, tokens: int, **more: Any) -> list[Leaf]:
    """All outcomes of whole requests."""
    vocab_size = len(p((0,)))
    return leaves(TableModel(vocab_size, p), lambda: overlapped(drafter, rule, depth), tokens=tokens, **more)


@dataclass(frozen=True, slots=True, eq=False)
class BreaksAhead(AheadDrafter):
    """Breaks off because of the last token that it drew ahead, or raises in the next round because of what it began with."""

    bad: int = 1
    raises: bool = False

    def propose(self, state: None, rnd: Round, base: Proposal, limit: Limit, policy: Any) -> Proposal:
        if self.raises and not rnd.in_flight and bool((base.tree.tokens == self.bad)[:, 1:].any()):
            raise RuntimeError("broken")
        made = AheadDrafter.propose(self, state, rnd, base, limit, policy)
        broken = not self.raises and rnd.in_flight and bool((made.tree.tokens == self.bad)[:, -1].any())
        return replace(made, fault="broken") if broken else made
