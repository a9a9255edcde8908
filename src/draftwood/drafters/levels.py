"""Levels: where the nodes of a growing tree are staged, level by level, without looking at the tree.

Every place of a frontier gets an entry, whether a node stands there or not, so the shape of each pass is known beforehand:

    known text   entries 0 .. n-1
    level 1      entries n .. n+F-1      one for each place of the first frontier below the root
    level 2      entries n+F .. n+2F-1
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.forward import ForwardInput, Span
from draftwood.core.host import put
from draftwood.core.score import KnownTokens
from draftwood.core.tree import TokenTree


class Levels:
    """One round's draft of B sequences: `known` is what their first pass runs, ending with the root's own."""

    def __init__(self, known: Sequence[KnownTokens], device: torch.device) -> None:
        self.known = list(known)
        self._first = [len(k.tokens) for k in self.known]
        last = [[len(k.tokens) - 1 for k in self.known], [k.done + len(k.tokens) - 1 for k in self.known]]
        root = put(last, device)[..., None]
        self._entry, self._position = root.unbind(0)  # [B, nodes so far]: of nodes that were run; -1: none
        self._slots = put([k.slot for k in self.known], device)
        self.place = torch.arange(len(self.known), device=device)[:, None]  # of a node's output among all outputs
        self._outputs = len(self.known)

    def step(self, tree: TokenTree, frontier: Int[Tensor, "B F"]) -> tuple[ForwardInput, Int[Tensor, "B F"]]:
        """The pass over a frontier, and where each of its nodes finds its parent's output."""
        batch, width = frontier.shape
        more = tree.num_nodes - self._entry.shape[1]
        entry, position, place = (
            torch.nn.functional.pad(x, (0, more), value=-1) for x in (self._entry, self._position, self.place)
        )
        node = frontier.clamp_min(0)
        above = tree.parents.gather(1, node).clamp_min(0)
        index = torch.arange(width, device=node.device)
        base = put(self._first, node.device)[:, None]
        behind, at = entry.gather(1, above), position.gather(1, above) + 1
        own, output = base + index, self._outputs + index + width * torch.arange(batch, device=node.device)[:, None]
        # Places without a node must not take the root's: they write behind all nodes, where nobody looks.
        to = torch.where(frontier >= 0, node, tree.num_nodes)
        self._entry, self._position, self.place = (
            torch.nn.functional.pad(x, (0, 1)).scatter(1, to, new.expand_as(to))[:, :-1]
            for x, new in ((entry, own), (position, at), (place, output))
        )
        spans = tuple(
            Span(k.slot, b * width, (b + 1) * width, k.done, first, len(k.tokens))
            for b, (k, first) in enumerate(zip(self.known, self._first, strict=True))
        )
        self._first = [first + width for first in self._first]
        self._outputs += batch * width
        columns = (tree.tokens.gather(1, node), self._slots[:, None].expand_as(node), at, own.expand_as(node), behind)
        ids, slots, positions, entries, parents = (column.flatten() for column in columns)
        want = torch.arange(batch * width, device=node.device)
        x = ForwardInput(ids, slots, positions, entries, parents, want, spans=spans)
        return x, place.gather(1, above).clamp_min(0)
