"""FirstLayers: the target's first layers over a growing tree, on the target's own staged entries.

draft    root ─ a ─ b     layers [0, l), one pass for each level
verify   root, a, b       layers [l, L), one pass: it continues from the hidden states of the draft
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.forward import ForwardInput, LayerPlan, Span
from draftwood.core.proposal import Started
from draftwood.core.protocols import Runner
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree


class FirstLayers:
    """Hidden states of one round's nodes. On a host only live nodes are run, in adjacent entries. On an accelerator all
    nodes are run, each at the entry of its number, so that no shape depends on data. Every root follows cached text."""

    def __init__(self, target: Runner, rnd: Round, layers: int) -> None:
        self.target, self.rnd, self.layers = target, rnd, layers
        self.done = [target.length(slot) for slot in rnd.host_slots]
        assert self.done == [length - 1 for length in rnd.host_lengths], "a token before the root is not in the cache"
        self._hidden: Tensor | None = None  # [B, nodes so far, H]

    def started(self, tree: TokenTree) -> Started:
        """For the pass that verifies this tree: nodes without children are run too."""
        return Started(self.layers, self.upto(tree), self._entries(tree))

    def upto(self, tree: TokenTree) -> Float[Tensor, "B N H"]:
        """Hidden states of all nodes; those that are new are run."""
        have = 0 if self._hidden is None else self._hidden.shape[1]
        if tree.num_nodes > have:
            fresh = self._run(tree, have)
            self._hidden = fresh if self._hidden is None else torch.cat([self._hidden, fresh], dim=1)
        assert self._hidden is not None
        return self._hidden

    def at(self, tree: TokenTree, nodes: Int[Tensor, "B F"]) -> Float[Tensor, "B F H"]:
        """Of these nodes; any values where a node is -1."""
        hidden = self.upto(tree)
        return hidden.gather(1, nodes.clamp_min(0)[..., None].expand(-1, -1, hidden.shape[-1]))

    def _entries(self, tree: TokenTree) -> Int[Tensor, "B N"] | None:
        return tree.live.long().cumsum(1) - 1 if host.on_host(self.rnd.device) else None

    def _run(self, tree: TokenTree, first: int) -> Float[Tensor, "B new H"]:
        batch, nodes = tree.batch, tree.num_nodes
        index = torch.arange(nodes, device=tree.tokens.device).expand(batch, -1)
        entries = self._entries(tree)
        read = entries is not None
        entry = index if entries is None else entries
        behind = torch.where(index > 0, entry.gather(1, tree.parents.clamp_min(0)), -1)
        at = tree.depths() + (self.rnd.lengths - 1)[:, None]
        slots = self.rnd.slots[:, None].expand(batch, nodes)
        columns = [x[:, first:].flatten() for x in (tree.tokens, slots, at, entry, behind)]
        new = nodes - first
        spans: tuple[Span, ...] = ()
        ride = torch.arange(batch * new, device=index.device)
        if read:
            ride = tree.live[:, first:].flatten().nonzero()[:, 0]
            columns = [x[ride] for x in columns]
        else:
            spans = tuple(
                Span(slot, b * new, (b + 1) * new, done, first, 1)
                for b, (slot, done) in enumerate(zip(self.rnd.host_slots, self.done, strict=True))
            )
        x = ForwardInput(*columns, want=ride[:0], spans=spans)
        hidden = self.target.execute(x, layers=LayerPlan(stop=self.layers)).hidden
        if read:
            hidden = hidden.new_zeros(batch * new, hidden.shape[-1]).index_copy(0, ride, hidden)
        return hidden.view(batch, new, -1).clone()
