"""Proposal: a tree of drafted tokens together with the distributions they were drawn from. Growth: a tree in the making."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.host import put
from draftwood.core.legal_draws import Draw
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import TokenTree

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """Target layers [0, layers) that a borrowing drafter has already run, on the target's staged entries, for every node of
    the pass, the root included. The pass goes on from there, so wrong hidden states change the text: nothing can check
    them. Only a sequence whose known tokens outside the cache are the root alone is started."""

    layers: int
    hidden: Float[Tensor, "B N H"]  # the residual after those layers; of dead nodes any
    # Staged entry of each node, the root's being 0. None: node i is entry i, which is all that a device can be told.
    entries: Int[Tensor, "B N"] | None = None
    sequences: tuple[bool, ...] | None = None  # which ones are started; None: all

    def hides(self, taps: frozenset[int]) -> bool:
        """Whether one of these taps lies in layers that a pass from here leaves out."""
        return any(0 <= tap < self.layers for tap in taps)

    def compact(self, order: Int[Tensor, "B nodes"]) -> "Started":
        """Rows follow their nodes, which keep the entries they were staged at."""
        hidden = self.hidden.gather(1, order[..., None].expand(-1, -1, self.hidden.shape[-1]))
        return replace(self, hidden=hidden, entries=order if self.entries is None else self.entries.gather(1, order))

    def take(self, sequences: Int[Tensor, "R"]) -> "Started":
        """Some sequences of a batch in which all are started."""
        entries = None if self.entries is None else self.entries[sequences]
        return Started(self.layers, self.hidden[sequences], entries)

    def among(self, sequences: list[int], batch: int) -> "Started":
        """Those of some sequences, in a batch whose others are not started."""
        at = put(sequences, self.hidden.device)
        hidden = self.hidden.new_zeros(batch, *self.hidden.shape[1:]).index_copy(0, at, self.hidden)
        entries = self.entries
        if entries is not None:
            entries = entries.new_zeros(batch, entries.shape[1]).index_copy(0, at, entries)
        return Started(self.layers, hidden, entries, tuple(b in sequences for b in range(batch)))


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What a drafter hands to the target. All functions are pure."""

    tree: TokenTree
    draw: Draw = Draw.GIVEN
    q: DraftProbs | None = None  # child distributions of expanded nodes only
    q_index: Int[Tensor, "B N"] | None = None  # distribution of q for each node's children, -1 if it has none
    passes: int = 0  # model passes that drafting took, and their seconds: for the cost model and for honest accounts
    pass_seconds: float = 0.0
    fault: str | None = None  # why drafting broke off; what was drawn before is still good
    # Bounds that the host knows without looking at the tree, so that no loop has to ask a device; None: num_nodes - 1.
    max_depth: int | None = None  # levels below the root
    max_children: int | None = None  # of any node, copies counted
    depths: Int[Tensor, "B N"] | None = None  # of the nodes, from whoever has them already
    started: Started | None = None  # target layers that are done already

    @staticmethod
    def roots(tokens: Int[Tensor, "B"]) -> "Proposal":
        """Nothing drafted."""
        tree = TokenTree.roots(tokens)
        return Proposal(tree, q_index=torch.full_like(tree.tokens, -1))

    def q_indices(self) -> Int[Tensor, "B N"]:
        """`q_index`, or -1 everywhere where nothing was drawn."""
        return torch.full_like(self.tree.tokens, -1) if self.q_index is None else self.q_index

    @property
    def levels(self) -> int:
        """No path is longer than this, the root not counted."""
        most = self.tree.num_nodes - 1
        return most if self.max_depth is None else min(most, self.max_depth)

    @property
    def siblings(self) -> int:
        """No node has more draws below it than this."""
        return self.tree.num_nodes - 1 if self.max_children is None else self.max_children

    def with_given(self, tokens: list[list[int]], parents: list[list[int]], score: list[list[float]]) -> "Proposal":
        """Given nodes below bare roots, from lists that may differ in length; parents count the root as 0."""
        width = max(map(len, tokens), default=0)
        if width == 0:
            return self
        device = self.tree.tokens.device
        given = put(_padded(tokens, width, -1), device)
        tree = self.tree.append(
            tokens=given.clamp_min(0),
            parents=put(_padded(parents, width, 0), device),
            live=given >= 0,
            score=put(_padded(score, width, 0.0), device, self.tree.score.dtype),
        )
        return Proposal(tree, Draw.GIVEN, q_index=torch.full_like(tree.tokens, -1))

    def node_depths(self) -> Int[Tensor, "B N"]:
        return self.tree.depths(self.levels) if self.depths is None else self.depths

    def keep(self, mask: Bool[Tensor, "B N"]) -> "Proposal":
        """Cut nodes; numbers stay."""
        return replace(self, tree=self.tree.keep(mask, self.levels))

    def compact(self, nodes: int) -> "Proposal":
        """Live nodes to the front, exactly `nodes` columns; the distributions follow their nodes."""
        tree, order = self.tree.compact(nodes)
        q_index = torch.where(tree.live, self.q_indices().gather(1, order), -1)
        started = None if self.started is None else self.started.compact(order)
        return replace(self, tree=tree, q_index=q_index, depths=None, started=started)

    def take(self, sequences: Int[Tensor, "R"]) -> "Proposal":
        """Some sequences of the batch. Distributions are kept whole: `q_index` points into them."""
        depths = None if self.depths is None else self.depths[sequences]
        started = self.started
        if (
            started is not None
        ):  # where only some are started, the engine has put the batch together and its pass has run
            started = started.take(sequences) if started.sequences is None else None
        tree, q_index = self.tree.take(sequences), self.q_indices()[sequences]
        return replace(self, tree=tree, q_index=q_index, depths=depths, started=started)


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """A tree in the making, passed between the calls of a policy: the tree so far, the nodes whose children come next, the
    distributions drawn from, and what the policy carries on for itself."""

    tree: TokenTree
    frontier: Int[Tensor, "B F"]  # -1 pads; an empty frontier ends growth
    q: tuple[DraftProbs, ...]  # one after another
    q_index: Int[Tensor, "B M"]  # nodes beyond M have no distribution
    carry: Any = None
    level: int | None = None  # depth of the frontier, where it is the same for all of it

    @staticmethod
    def at_roots(base: Proposal) -> "Growth":
        """Start below the root of a bare proposal."""
        q = () if base.q is None else (base.q,)
        return Growth(base.tree, torch.zeros_like(base.tree.tokens[:, :1]), q, base.q_indices(), level=0)

    def deeper(self, tree: TokenTree, frontier: Int[Tensor, "B F"], carry: Any) -> "Growth":
        """One more level of given nodes: a grown tree, whose new nodes have no distribution, and the next frontier in it."""
        level = None if self.level is None else self.level + 1
        return replace(self, tree=tree, frontier=frontier, carry=carry, level=level)


def _padded(lists: list[list[T]], width: int, fill: T) -> list[list[T]]:
    return [x + [fill] * (width - len(x)) for x in lists]
