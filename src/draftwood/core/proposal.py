"""Proposal: a tree of drafted tokens together with the distributions they were drawn from. Growth: a tree in the making."""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.draw import Draw
from draftwood.core.host import host
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import SCORED, TokenTree

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """Target layers that a borrowing drafter has already run on every live scored node, the root included."""

    layers: int  # [0, layers) done
    hidden: Float[Tensor, "B N H"]  # the residual after them
    entries: Int[Tensor, "B N"]  # staged cache entries


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What a drafter hands to the target. All functions are pure."""

    tree: TokenTree
    draw: Draw = Draw.GIVEN
    q: DraftProbs | None = None  # child distributions of expanded nodes only
    q_index: Int[Tensor, "B N"] | None = None  # distribution of q for each node's children, -1 if it has none
    started: Started | None = None
    passes: int = 0  # model passes that drafting took, and their seconds: for the cost model and for honest accounts
    pass_seconds: float = 0.0
    fault: str | None = None  # why drafting broke off; what was drawn before is still good

    @staticmethod
    def roots(tokens: Int[Tensor, "B"]) -> "Proposal":
        """Nothing drafted."""
        tree = TokenTree.roots(tokens)
        return Proposal(tree, q_index=torch.full_like(tree.tokens, -1))

    def q_indices(self) -> Int[Tensor, "B N"]:
        """`q_index`, or -1 everywhere where nothing was drawn."""
        return torch.full_like(self.tree.tokens, -1) if self.q_index is None else self.q_index

    def with_given(self, tokens: list[list[int]], parents: list[list[int]], score: list[list[float]]) -> "Proposal":
        """Given nodes below bare roots, from lists that may differ in length; parents count the root as 0."""
        width = max(map(len, tokens), default=0)
        if width == 0:
            return self
        device = self.tree.tokens.device
        given = torch.tensor(_padded(tokens, width, -1), device=device)
        tree = self.tree.append(
            tokens=given.clamp_min(0),
            parents=torch.tensor(_padded(parents, width, 0), device=device),
            live=given >= 0,
            score=torch.tensor(_padded(score, width, 0.0), dtype=self.tree.score.dtype, device=device),
        )
        return Proposal(tree, Draw.GIVEN, q_index=torch.full_like(tree.tokens, -1))

    def keep(self, mask: Bool[Tensor, "B N"]) -> "Proposal":
        """Cut nodes; numbers stay."""
        return replace(self, tree=self.tree.keep(mask))

    def compact(self, nodes: int) -> "Proposal":
        """Live nodes to the front, exactly `nodes` columns; the distributions follow their nodes."""
        tree, order = self.tree.compact(nodes)
        q_index = torch.where(tree.live, self._follow(self.q_indices(), order, nodes, -1), -1)
        started = self.started
        if started is not None:
            hidden = started.hidden.gather(1, order[..., None].expand(-1, -1, started.hidden.shape[-1]))
            started = Started(started.layers, hidden, self._follow(started.entries, order, nodes, -1))
        return replace(self, tree=tree, q_index=q_index, started=started)

    @staticmethod
    def _follow(x: Tensor, order: Int[Tensor, "B M"], nodes: int, fill: int) -> Tensor:
        moved = x.gather(1, order)
        if moved.shape[1] < nodes:
            moved = torch.cat([moved, moved.new_full((len(moved), nodes - moved.shape[1]), fill)], dim=1)
        return moved

    def merge(self, other: "Proposal") -> "Proposal":
        """`other`'s given nodes grafted on by longest shared prefix; ours keep their numbers, draws and distributions.

        Only given nodes may be grafted: a drawn node of a second drafter beside drawn siblings of the first would need
        one distribution for both. Grafted nodes rank below all of ours: were they above, a drawn token that is also given
        would survive a budget because of which token it is.
        """
        if other.tree.copies.any():
            raise ValueError("only given nodes can be merged into a tree; the other proposal holds drawn ones")
        grafted = [self._graft(b, other.tree) for b in range(self.tree.batch)]
        width = max(map(len, grafted), default=0)
        if width == 0:
            return self
        pad = [nodes + [(0, -1, 0.0, 0)] * (width - len(nodes)) for nodes in grafted]
        device = self.tree.tokens.device
        parents, tokens, score, source = (
            torch.tensor([[node[i] for node in nodes] for nodes in pad], device=device) for i in range(4)
        )
        lowest, highest = self.tree.score.amin(1, keepdim=True), other.tree.score.amax(1, keepdim=True)
        tree = self._append(parents, tokens, score.to(lowest.dtype) + lowest - highest - 1, source)
        q_index = torch.cat([self.q_indices(), torch.full_like(tokens, -1)], dim=1)
        return replace(self, tree=tree, q_index=q_index)

    def _append(self, parents: Tensor, tokens: Tensor, score: Tensor, source: Tensor) -> TokenTree:
        # Grafted nodes may hang below each other, and `add` wants parents that exist: one column at a time is plain
        # and the widths are small.
        tree = self.tree
        for i in range(tokens.shape[1]):
            at = slice(i, i + 1)
            tree = tree.add(
                parents[:, at],
                tokens[:, at],
                live=tokens[:, at] >= 0,
                copies=0,
                score=score[:, at],
                source=source[:, at],
            )
        return tree

    def _graft(self, sequence: int, other: TokenTree) -> list[tuple[int, int, float, int]]:
        ours = {}
        mine = self.tree
        for i, (parent, token, live) in enumerate(
            zip(*(host(x[sequence]) for x in (mine.parents, mine.tokens, mine.live)), strict=True)
        ):
            if live and i:
                ours[parent, token] = i
        new: list[tuple[int, int, float, int]] = []
        where = {0: 0}
        columns = (other.parents, other.tokens, other.live, other.score, other.source)
        for i, (parent, token, live, score, source) in enumerate(
            zip(*(host(column[sequence]) for column in columns), strict=True)
        ):
            if i == 0 or not live:
                continue
            at = where[parent]
            if (at, token) not in ours:
                ours[at, token] = mine.num_nodes + len(new)
                new.append((at, token, score, source))
            where[i] = ours[at, token]
        return new

    def reroot(self, node: Int[Tensor, "B"], nodes: int) -> "Proposal":
        """The subtree below `node` as a proposal of its own, node first, in `nodes` columns, everything SCORED.

        A sequence with node -1 has nothing to carry over: it becomes a dead tree whose root the caller replaces.
        """
        below = self.tree.ancestors().gather(2, node.clamp_min(0)[:, None, None].expand(-1, self.tree.num_nodes, 1))
        inside = below[..., 0] & self.tree.live & (node >= 0)[:, None]
        cut = replace(self.tree, live=inside, role=torch.full_like(self.tree.role, SCORED))
        tree, order = cut.compact(nodes)
        q_index = torch.where(tree.live, self._follow(self.q_indices(), order, nodes, -1), -1)
        return replace(self, tree=tree, q_index=q_index, started=None)

    def take(self, sequences: Int[Tensor, "R"]) -> "Proposal":
        """Some sequences of the batch. Distributions are kept whole: `q_index` points into them."""
        started = self.started
        if started is not None:
            started = Started(started.layers, started.hidden[sequences], started.entries[sequences])
        return replace(self, tree=self.tree.take(sequences), q_index=self.q_indices()[sequences], started=started)

    def to(self, device: torch.device | str) -> "Proposal":
        started = self.started
        if started is not None:
            started = Started(started.layers, started.hidden.to(device), started.entries.to(device))
        return replace(
            self,
            tree=self.tree.to(device),
            q=None if self.q is None else self.q.to(device),
            q_index=self.q_indices().to(device),
            started=started,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """A tree in the making, passed between the calls of a policy: the tree so far, the nodes whose children come next, the
    distributions drawn from, and what the policy carries on for itself."""

    tree: TokenTree
    frontier: Int[Tensor, "B F"]  # -1 pads; an empty frontier ends growth
    q: DraftProbs | None
    q_index: Int[Tensor, "B M"]  # nodes beyond M have no distribution
    carry: Any = None
    level: int | None = None  # depth of the frontier, where it is the same for all of it

    @staticmethod
    def at_roots(base: Proposal) -> "Growth":
        """Start below the root of a bare proposal."""
        return Growth(base.tree, torch.zeros_like(base.tree.tokens[:, :1]), base.q, base.q_indices(), level=0)

    def deeper(self, tree: TokenTree, frontier: Int[Tensor, "B F"], carry: Any) -> "Growth":
        """One more level of given nodes: a grown tree, whose new nodes have no distribution, and the next frontier in it."""
        level = None if self.level is None else self.level + 1
        return replace(self, tree=tree, frontier=frontier, carry=carry, level=level)


def _padded(lists: list[list[T]], width: int, fill: T) -> list[list[T]]:
    return [x + [fill] * (width - len(x)) for x in lists]
