"""FirstLayers: the target's first layers over a growing tree, on the target's own staged entries.

draft    root ─ a ─ b     layers [0, l), one pass for each level
verify   root, a, b       layers [l, L), one pass: it continues from the hidden states of the draft

Layers may be run in two steps: those behind `below` continue from its hidden states.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.forward import ForwardInput, LayerPlan, Span
from draftwood.core.host import put
from draftwood.core.proposal import Started
from draftwood.core.protocols import Runner
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree


@dataclass(frozen=True, slots=True, eq=False)
class NodePass:
    """A pass over the nodes of a tree from one column on. On a host only live nodes are run, in adjacent entries: a node
    that is dead by now leaves its entry to the next one. On an accelerator all nodes are run, each at the entry of its
    number, so that no shape depends on data."""

    x: ForwardInput
    ride: Int[Tensor, "T"] | None  # places in the flattened columns of the nodes that are run; None: all are
    batch: int
    columns: int

    @staticmethod
    def over(
        tree: TokenTree,
        first: int,
        rnd: Round,
        done: Sequence[int],
        behind: Sequence[int] | None = None,
        want: int | None = None,
    ) -> "NodePass":
        """`done`: committed entries of each sequence's slot; `behind`: staged ones in front of its root, by default none.
        Logits are wanted from column `want` on, by default nowhere."""
        batch, nodes = tree.batch, tree.num_nodes
        entry = staged_entries(tree)
        index = torch.arange(nodes, device=tree.tokens.device).expand(batch, -1)
        ride = None if entry is None else tree.live[:, first:].flatten().nonzero()[:, 0]
        entry = index if entry is None else entry
        if behind is not None:
            entry = entry + put(behind, entry.device)[:, None]
        above = torch.where(index > 0, entry.gather(1, tree.parents.clamp_min(0)), -1)
        at = tree.depths() + (rnd.lengths - 1)[:, None]
        slots = rnd.slots[:, None].expand(batch, nodes)
        columns = [x[:, first:].flatten() for x in (tree.tokens, slots, at, entry, above)]
        new = nodes - first
        wanted = index[0, :0]
        if want is not None:
            wanted = torch.arange(batch * new, device=index.device).view(batch, new)[:, want - first :].flatten()
        if ride is not None:
            if want is not None:
                wanted = (ride % new >= want - first).nonzero()[:, 0]
            return NodePass(ForwardInput(*(x[ride] for x in columns), want=wanted), ride, batch, new)
        known = [0] * batch if behind is None else behind
        spans = tuple(
            Span(slot, b * new, (b + 1) * new, before, front + first, front + 1)
            for b, (slot, before, front) in enumerate(zip(rnd.host_slots, done, known, strict=True))
        )
        return NodePass(ForwardInput(*columns, want=wanted, spans=spans), None, batch, new)

    def starting_from(self, hidden: Float[Tensor, "B new H"]) -> ForwardInput:
        """The pass over what these hidden states of all columns say of the nodes that are run."""
        flat = hidden.flatten(0, 1)
        return self.x.starting_from(flat if self.ride is None else flat[self.ride])

    def spread(self, y: Float[Tensor, "T d"]) -> Float[Tensor, "B new d"]:
        """An output of every token, by column; zeros for nodes that are not run."""
        return self._placed(y, self.ride, self.columns)

    def spread_wanted(self, y: Float[Tensor, "U W"], wanted: int) -> Float[Tensor, "B wanted W"]:
        """The same for the last `wanted` columns, whose logits were wanted."""
        ride = self.ride
        if ride is not None:
            ride = ride[self.x.want]
            ride = ride // self.columns * wanted + ride % self.columns - (self.columns - wanted)
        return self._placed(y, ride, wanted)

    def _placed(self, y: Tensor, at: Int[Tensor, "T"] | None, columns: int) -> Float[Tensor, "B columns d"]:
        if at is not None and len(at) < self.batch * columns:
            y = y.new_zeros(self.batch * columns, y.shape[-1]).index_copy(0, at, y)
        return y.view(self.batch, columns, -1)


def staged_entries(tree: TokenTree) -> Int[Tensor, "B N"] | None:
    """Staged entry of each live node, the root's being 0. None: its number."""
    return tree.live.long().cumsum(1) - 1 if host.on_host(tree.tokens.device) else None


class FirstLayers:
    """Hidden states of one round's nodes after so many layers. Every root follows cached text. `below`: the layers of these
    that are run by themselves."""

    def __init__(self, target: Runner, rnd: Round, layers: int, below: "FirstLayers | None" = None) -> None:
        self.target, self.rnd, self.layers, self.below = target, rnd, layers, below
        self.done = [target.length(slot) for slot in rnd.host_slots]
        assert self.done == [length - 1 for length in rnd.host_lengths], "a token before the root is not in the cache"
        self._hidden: Tensor | None = None  # [B, nodes so far, H]

    def started(self, tree: TokenTree) -> Started:
        """For the pass that verifies this tree: nodes without children are run too."""
        features = {} if self.below is None else {self.below.layers: self.below.upto(tree)}
        return Started(self.layers, self.upto(tree), staged_entries(tree), features=features)

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

    def _run(self, tree: TokenTree, first: int) -> Float[Tensor, "B new H"]:
        nodes = NodePass.over(tree, first, self.rnd, self.done)
        if not nodes.x.size and self._hidden is not None:  # every new node is dead by now
            return self._hidden.new_zeros(nodes.batch, nodes.columns, self._hidden.shape[-1])
        x, start = nodes.x, 0
        if self.below is not None:
            x, start = nodes.starting_from(self.below.upto(tree)[:, first:]), self.below.layers
        hidden = self.target.execute(x, layers=LayerPlan(start=start, stop=self.layers)).hidden
        return nodes.spread(hidden).clone()
