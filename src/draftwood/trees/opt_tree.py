"""OptTree: the tree of a given size that the draft expects most from, grown only while another level adds enough.

A node is reached with the product of the draft's probabilities on its path, and a tree is worth the sum over its nodes:
the tokens that would be accepted if the draft were right. The best tree of n nodes is the n best nodes.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.limit import Limit
from draftwood.core.proposal import Growth, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError
from draftwood.trees.best_first import BestFirst
from draftwood.trees.by_level import ByLevel


@dataclass(frozen=True, slots=True, eq=False)
class _Carry:
    search: Any
    worth: Float[Tensor, "B"]  # of the best tree so far


@dataclass(frozen=True, slots=True)
class OptTree(ByLevel):
    """The search of `BestFirst` with a beam as wide as the budget, so that nothing worth keeping is missed. A sequence stops
    when its newest level made its best tree worth at most `delta` tokens more."""

    delta: float = 0.5

    def __post_init__(self) -> None:
        if not self.delta >= 0:
            raise OptionError(f"OptTree: delta cannot be {self.delta!r}\nhint: expected tokens, at least 0")

    @property
    def draw(self) -> Draw:
        return Draw.GIVEN

    @property
    def shape(self) -> Shape:
        return Shape.TREE

    def reads(self, limit: Limit) -> int:
        """Columns of a distribution that matter, the best ones."""
        return _search(limit).reads(limit)

    def max_children(self, limit: Limit) -> int:
        return _search(limit).max_children(limit)

    def start(self, base: Proposal, limit: Limit, rnd: Round) -> Growth:
        growth = _search(limit).start(base, limit, rnd)
        return replace(growth, carry=_Carry(growth.carry, worth(base.tree, limit)))

    def expand(self, growth: Growth, q: DraftProbs, allowed: Bool[Tensor, "B F"], limit: Limit, rnd: Round) -> Growth:
        carry: _Carry = growth.carry
        grown = _search(limit).expand(replace(growth, carry=carry.search), q, allowed, limit, rnd)
        now = worth(grown.tree, limit)
        goes_on = (now - carry.worth > self.delta)[:, None]
        return replace(grown, frontier=torch.where(goes_on, grown.frontier, -1), carry=_Carry(grown.carry, now))

    def select(self, tree: TokenTree, limit: Limit) -> Bool[Tensor, "B N"]:
        return _search(limit).select(tree, limit)


def worth(tree: TokenTree, limit: Limit) -> Float[Tensor, "B"]:
    """Tokens that the best `limit.nodes` nodes are expected to yield, all levels counted, the newest too."""
    kept = _search(limit).select(tree, limit)[:, 1:]
    return torch.where(kept, tree.score[:, 1:].double().exp(), 0.0).sum(1)


def _search(limit: Limit) -> BestFirst:
    return BestFirst(beam=max(limit.tier.nodes - 1, 1))
