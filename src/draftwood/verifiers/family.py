"""Families: the children of every node as a table, made once for a tree.

    0 root          child [0] = [1, 2, 0]     0: none, for the root is no child
    ├─ 1 ── 3             [1] = [3, 0, 0]
    └─ 2                  [2] = [0, 0, 0]

A rule that visits a few nodes then reads a few children, not the whole tree anew for each.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.tree import SCORED, TokenTree

_NO_TOKEN = -2  # of no node; -1 is what a pick returns when there is nothing to pick


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Children of one node of each sequence that this pass scores, siblings in draw order, empty places last."""

    node: Int[Tensor, "B"]
    child: Int[Tensor, "B C"]  # 0: none
    token: Int[Tensor, "B C"]
    copies: Int[Tensor, "B C"]  # draws behind each; given children have none


@dataclass(frozen=True, slots=True, eq=False)
class Families:
    """Every node's."""

    child: Int[Tensor, "B N C"]
    token: Int[Tensor, "B N"]  # of nodes, the root's left out
    copies: Int[Tensor, "B N"]
    each: Int[Tensor, "B"]

    @staticmethod
    def of(tree: TokenTree) -> "Families":
        batch, nodes = tree.tokens.shape
        index = torch.arange(nodes, device=tree.tokens.device)
        each = torch.arange(batch, device=index.device)
        if nodes == 1:  # a bare root, as in plain decoding
            none = torch.zeros_like(tree.tokens)
            return Families(none[..., None], none + _NO_TOKEN, none, each)
        scored = tree.live & (tree.role == SCORED) & (index > 0)
        above, order = torch.where(scored, tree.parents, nodes).sort(dim=1, stable=True)
        place = index - torch.searchsorted(above, above)  # among siblings
        most = max(1, int(torch.where(above < nodes, place, -1).max()) + 1) if batch else 1
        table = torch.zeros(batch, nodes * most + 1, dtype=torch.int64, device=index.device)
        table.scatter_(1, torch.where(above < nodes, above * most + place, nodes * most), order)
        token = torch.where(index > 0, tree.tokens, _NO_TOKEN)
        return Families(table[:, :-1].view(batch, nodes, most), token, tree.copies, each)

    def at(self, node: Int[Tensor, "B"], sequences: Int[Tensor, "B"] | None = None) -> Family:
        """Of one node of each sequence, or of each of some."""
        child = self.child[self.each if sequences is None else sequences, node]
        token, copies = (
            (self.token, self.copies) if sequences is None else (self.token[sequences], self.copies[sequences])
        )
        return Family(node, child, token.gather(1, child), copies.gather(1, child))
