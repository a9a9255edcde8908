"""How often the first, second, third .. sibling is the accepted one, level by level.

A fixed tree is only as good as the acceptance it was made for. Here a wide one is drafted and verified, and at every node
that the rule reached, each child is counted as tried and the accepted one as kept. Which children a node has is settled
before anything is drawn, so the counts are not biased by what was drawn.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.trees.best_shape import positional
from draftwood.trees.shaped import Shaped
from draftwood.verifiers.rejection import Rejection

FIRST, SECOND = 0.6, 0.2  # the tree that is tried is made for these, and for half as much with every further sibling


def tried_tree(width: int, nodes: int, depth: int) -> Shaped:
    """A tree wide enough to see every sibling up to `width`."""
    return Shaped(positional([FIRST, *(SECOND / 2**i for i in range(width - 1))], nodes, depth))


@dataclass(frozen=True, slots=True)
class Ranks:
    """Counts by depth of the parent and by sibling."""

    tried: list[list[int]]
    kept: list[list[int]]

    def rate(self, depth: int, sibling: int) -> float | None:
        tried = self.tried[depth][sibling]
        return self.kept[depth][sibling] / tried if tried else None

    def acceptance(self) -> tuple[float, ...]:
        """Of all depths together, made falling: where a later sibling did better, by chance, both get what they have
        together. Siblings that were never accepted are left out. Those that few nodes had may have been lucky; together
        they are not accepted more often than always."""
        pools: list[list[int]] = []  # kept, tried, siblings
        for sibling in range(len(self.tried[0])):
            pools.append([sum(level[sibling] for level in self.kept), sum(level[sibling] for level in self.tried), 1])
            while len(pools) > 1 and pools[-1][0] * pools[-2][1] > pools[-2][0] * pools[-1][1]:
                last = pools.pop()
                pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
        rates = [kept / tried for kept, tried, count in pools for _ in range(count) if kept]
        return tuple(rate / max(sum(rates), 1.0) for rate in rates)


@dataclass(slots=True)
class Counting:
    """Rejection, counting which sibling it accepts. Only for one tree: `width` is the most children of a node."""

    width: int
    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Rejection"].draws
    shapes: frozenset[Shape] = RULES["Rejection"].shapes
    tried: list[list[int]] = field(default_factory=list[list[int]])
    kept: list[list[int]] = field(default_factory=list[list[int]])

    @staticmethod
    def of(tree: Shaped) -> "Counting":
        return Counting(max(tree.parents.count(p) for p in set(tree.parents)))

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        verdict = Rejection().verify(proposal, target, rnd)
        last = torch.nn.functional.pad(verdict.path, (0, 1), value=-1)
        for depth, (node, then) in enumerate(zip(last.unbind(1), last.unbind(1)[1:], strict=False)):
            self._count(depth, node, then, proposal)
        return verdict

    def _count(self, depth: int, node: Tensor, then: Tensor, proposal: Proposal) -> None:
        children = proposal.tree.children(node.clamp_min(0)) & (node >= 0)[:, None]  # [B, N]
        offered = children.sum(1).tolist()
        index = torch.arange(children.shape[1], device=children.device)
        place = (children & (index < then[:, None])).sum(1).tolist()
        while len(self.tried) <= depth:
            self.tried.append([0] * self.width)
            self.kept.append([0] * self.width)
        for count, at, goes_on in zip(offered, place, (then >= 0).tolist(), strict=True):
            for sibling in range(count):
                self.tried[depth][sibling] += 1
            if goes_on:
                self.kept[depth][at] += 1
