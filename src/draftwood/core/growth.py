"""Growth: a tree in the making, passed between the calls of a policy."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.proposal import DraftProbs, Proposal
from draftwood.core.tree import TokenTree


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """The tree so far, the nodes whose children come next, the distributions drawn from, and the policy's private carry."""

    tree: TokenTree
    frontier: Int[Tensor, "B F"]  # -1 pads; an empty frontier ends growth
    q: DraftProbs | None
    q_index: Int[Tensor, "B M"]  # nodes beyond M have no distribution
    carry: Any = None
    level: int | None = None  # depth of the frontier where all of it is equally deep; None: the tree must be asked

    @staticmethod
    def at_roots(base: Proposal) -> "Growth":
        """Start below the root of a bare proposal."""
        return Growth(base.tree, torch.zeros_like(base.tree.tokens[:, :1]), base.q, base.q_indices(), level=0)

    def deeper(self, tree: TokenTree, frontier: Int[Tensor, "B F"], carry: Any) -> "Growth":
        """One more level of given nodes: a grown tree, whose new nodes have no distribution, and the next frontier in it."""
        return replace(
            self, tree=tree, frontier=frontier, carry=carry, level=None if self.level is None else self.level + 1
        )
