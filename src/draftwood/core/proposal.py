"""Proposal: a tree of drafted tokens together with the distributions they were drawn from. Growth: a tree in the making."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.host import host, put
from draftwood.core.legal_draws import Draw
from draftwood.core.sampling.draft_probs import DraftProbs
from draftwood.core.tree import AHEAD, SCORED, TokenTree, fit

if TYPE_CHECKING:
    from draftwood.core.verdict import Verdict

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """Target layers [0, layers) that a borrowing drafter has already run, on the target's staged entries, for every node of
    the pass, the root included. The pass continues from them, so wrong hidden states change the text, and no check finds
    them. Only a sequence whose known tokens outside the cache are the root alone is started.

    A part may tap the residual after fewer layers, which that pass never has: then either `features` has it, or the pass
    runs all layers again."""

    layers: int
    hidden: Float[Tensor, "B N H"]  # the residual after those layers; any values for dead nodes
    # Staged entry of each node, the root's being 0. None: node i is entry i; only this form needs no host read.
    entries: Int[Tensor, "B N"] | None = None
    sequences: tuple[bool, ...] | None = None  # which ones are started; None: all
    features: dict[int, Float[Tensor, "B N H"]] = field(default_factory=dict[int, Tensor])  # by tap, as far as kept

    def compact(self, order: Int[Tensor, "B nodes"]) -> "Started":
        """Hidden states move with their nodes, which keep the entries they were staged at."""
        at = order[..., None].expand(-1, -1, self.hidden.shape[-1])
        entries = order if self.entries is None else self.entries.gather(1, order)
        features = {tap: x.gather(1, at) for tap, x in self.features.items()}
        return replace(self, hidden=self.hidden.gather(1, at), entries=entries, features=features)

    def take(self, sequences: Int[Tensor, "R"]) -> "Started":
        """Some sequences of a batch in which all are started."""
        entries = None if self.entries is None else self.entries[sequences]
        features = {tap: x[sequences] for tap, x in self.features.items()}
        return Started(self.layers, self.hidden[sequences], entries, features=features)

    def scatter(self, sequences: list[int], batch: int) -> "Started":
        """The inverse of `take`: these sequences in their places of a larger batch, whose others are not started."""
        at = put(sequences, self.hidden.device)

        def spread(x: Tensor) -> Tensor:
            return x.new_zeros(batch, *x.shape[1:]).index_copy(0, at, x)

        entries = None if self.entries is None else spread(self.entries)
        features = {tap: spread(x) for tap, x in self.features.items()}
        return Started(self.layers, spread(self.hidden), entries, tuple(b in sequences for b in range(batch)), features)


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """Vectors that enter the first layer at some nodes, in place of the embeddings of their tokens. Only probes may have
    one: text that was read through another vector would be another text. Such a node is told apart from its siblings by its
    vector, so its token is any, and the pass makes no logits of it: its drafter reads features."""

    vectors: Float[Tensor, "M H"]
    index: Int[Tensor, "B N"]  # of each node, -1: the embedding of its token

    def moved(self, order: Int[Tensor, "B M"], live: Bool[Tensor, "B M"]) -> "Inputs":
        """Of nodes picked per sequence."""
        return replace(self, index=torch.where(live, self.index.gather(1, order), -1))

    def take(self, sequences: Int[Tensor, "R"]) -> "Inputs":
        return replace(self, index=self.index[sequences])

    @staticmethod
    def scatter(
        own: "Inputs | None", base: "Inputs | None", at: Int[Tensor, "R"], shape: tuple[int, int]
    ) -> "Inputs | None":
        """Those of some sequences in their places of a larger batch with these numbers of sequences and nodes."""
        if own is None and base is None:
            return None
        index = torch.full(shape, -1, device=at.device) if base is None else fit(base.index, shape[1], -1)
        none = torch.full((len(at), shape[1]), -1, device=at.device)
        mine = none if own is None else fit(own.index, shape[1], -1)
        before = 0 if base is None else len(base.vectors)
        vectors = [each.vectors for each in (base, own) if each is not None]
        mine = torch.where(mine >= 0, mine + before, -1)
        return Inputs(torch.cat(vectors), index.index_copy(0, at, mine))


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What a drafter hands to the target. All functions are pure."""

    tree: TokenTree
    draw: Draw = Draw.GIVEN
    q: DraftProbs | None = None  # child distributions of expanded nodes only
    q_index: Int[Tensor, "B N"] | None = None  # distribution of q for each node's children, -1 if it has none
    passes: int = 0  # model passes that drafting took, and their seconds: for the cost model and the statistics
    pass_seconds: float = 0.0
    fault: str | None = None  # why drafting broke off; what was drawn before is still valid
    # Bounds that the host knows without reading the tree, so that no loop waits for a device; None: num_nodes - 1.
    max_depth: int | None = None  # levels below the root
    max_children: int | None = None  # of any node, copies counted
    depths: Int[Tensor, "B N"] | None = None  # of the nodes, if they are known already
    started: Started | None = None  # target layers that are done already
    inputs: Inputs | None = None  # of probes that no token stands for

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

    def with_given(
        self,
        tokens: list[list[int]],
        parents: list[list[int]],
        score: list[list[float]],
        least: int = 0,
        source: list[list[int]] | None = None,
        role: list[list[int]] | None = None,
    ) -> "Proposal":
        """Given nodes below bare roots, from lists that may differ in length; parents count the root as 0. `least`: columns
        at least, where shapes must not follow the text. `source`, `role`: of each node; 0 and scored by default."""
        width = max(least, max(map(len, tokens), default=0))
        if width == 0:
            return self
        device = self.tree.tokens.device
        if hosts.on_host(device) and self.tree.num_nodes == 1:
            tree = _tree_of_lists(self.tree, width, tokens, parents, score, source, role)
            return Proposal(tree, Draw.GIVEN)
        given = put(_padded(tokens, width, -1), device)
        tree = self.tree.append(
            tokens=given.clamp_min(0),
            parents=put(_padded(parents, width, 0), device),
            live=given >= 0,
            score=put(_padded(score, width, 0.0), device, self.tree.score.dtype),
            source=None if source is None else put(_padded(source, width, 0), device),
            role=None if role is None else put(_padded(role, width, SCORED), device),
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
        inputs = None if self.inputs is None else self.inputs.moved(order, tree.live)
        return replace(self, tree=tree, q_index=q_index, depths=None, started=started, inputs=inputs)

    def take(self, sequences: Int[Tensor, "R"]) -> "Proposal":
        """Some sequences of the batch. Distributions are kept whole: `q_index` points into them."""
        depths = None if self.depths is None else self.depths[sequences]
        started = self.started
        if started is not None:  # a batch with only some started sequences is put together after all are taken
            started = started.take(sequences) if started.sequences is None else None
        tree, q_index = self.tree.take(sequences), self.q_indices()[sequences]
        inputs = None if self.inputs is None else self.inputs.take(sequences)
        return replace(self, tree=tree, q_index=q_index, depths=depths, started=started, inputs=inputs)

    def scatter(self, sequences: list[int], base: "Proposal") -> "Proposal":
        """The inverse of `take`: these sequences, in order, in their places of the larger batch `base`, whose others stay as
        they are."""
        if len(sequences) == base.tree.batch:
            return self
        width, at = max(base.tree.num_nodes, self.tree.num_nodes), put(sequences, self.tree.tokens.device)
        tree, own = base.tree.resize(width), self.tree.resize(width)
        columns = [(getattr(tree, name), getattr(own, name)) for name in tree.__slots__]
        q, named = self.q, fit(self.q_indices(), width, -1)
        if base.q is not None:
            q = base.q if q is None else base.q.join(q)
            named = torch.where(named >= 0, named + base.q.num_distributions, -1)
        return replace(
            self,
            tree=TokenTree(*(old.index_copy(0, at, new.to(old.dtype)) for old, new in columns)),
            q=q,
            q_index=fit(base.q_indices(), width, -1).index_copy(0, at, named),
            max_depth=max(base.levels, self.levels),
            max_children=max(base.siblings, self.siblings),
            depths=None,
            started=None if self.started is None else self.started.scatter(sequences, base.tree.batch),
            inputs=Inputs.scatter(self.inputs, base.inputs, at, (base.tree.batch, width)),
        )

    def with_own_probs(self) -> "Proposal":
        """One distribution for each node, if more are stored: drops those that no node names any more."""
        q, at = self.q, self.q_indices()
        if q is None or q.num_distributions <= at.numel():
            return self
        used = at.clamp_min(0).flatten()
        ids = q.ids if q.ids is None or q.ids.ndim == 1 else q.ids[used]
        own = torch.arange(at.numel(), device=at.device).view_as(at)
        return replace(self, q=DraftProbs(q.prob[used], ids), q_index=torch.where(at >= 0, own, -1))

    def reroot(self, verdict: "Verdict") -> "Proposal":
        """What was drafted for the next round, now that this one is judged. The AHEAD child of the last accepted node that
        carries the emitted token is the next root, and the AHEAD nodes below it are scored nodes; where there is no such
        child, a bare root. As many columns as before, because how many are used depends on the verdict.

            0 ── 1 ── 2 ┄┄ 3 a ┄┄ 5      accepted up to 2, emitted a:   0 a ── 1 (once 5)
                      └┄┄┄ 4 b ┄┄ 6

        The root was emitted by the rule and is not judged again. What stands below it was drawn from its own text, without
        knowing the verdict: an ordinary draft.
        """
        tree, index = self.tree, torch.arange(self.tree.num_nodes, device=self.tree.tokens.device)
        ahead, token = tree.live & (tree.role == AHEAD), verdict.next_token[:, None]
        last = verdict.path.gather(1, verdict.count[:, None])
        hit = ahead & (tree.parents == last) & (tree.tokens == token)
        below = ahead & tree.below(hit, self.levels) & ~hit
        order = (2 - below.long() - 2 * hit.long()).argsort(dim=1, stable=True)  # root, nodes below it, all others
        back = order.argsort(dim=1)
        moved, drafted, root = tree.take_nodes(order), below.gather(1, order), (index == 0).expand_as(below)
        parents = back.gather(1, moved.parents.clamp(0, tree.num_nodes - 1))
        above = moved.score[:, :1]  # scores count from the root
        score = moved.score - torch.where(above.isfinite(), above, 0.0)
        rerooted = TokenTree(
            tokens=torch.where(root, token, torch.where(drafted, moved.tokens, 0)),
            parents=torch.where(root, -1, torch.where(drafted, parents, 0)),
            live=drafted | root,
            role=torch.full_like(moved.role, SCORED),
            copies=torch.where(drafted, moved.copies, 0),
            score=torch.where(drafted, score, 0.0),
            source=torch.where(drafted, moved.source, -1),
        )
        named = drafted | (root & hit.any(1, keepdim=True))
        return Proposal(
            rerooted,
            self.draw,
            self.q,
            torch.where(named, self.q_indices().gather(1, order), -1),
            max_depth=max(self.levels - 1, 0),
            max_children=self.max_children,
        )


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


def _tree_of_lists(
    roots: TokenTree,
    width: int,
    tokens: list[list[int]],
    parents: list[list[int]],
    score: list[list[float]],
    source: list[list[int]] | None,
    role: list[list[int]] | None,
) -> TokenTree:
    """Given nodes below bare roots on the host. Two copies for all columns: one for each takes longer than a small draft."""
    columns: list[list[list[int]]] = [[] for _ in range(6)]
    for b, (own, above, (root,)) in enumerate(zip(tokens, parents, host(roots.tokens), strict=True)):
        none = [0] * (width - len(own))
        zero = [0] * (width + 1)
        columns[0].append([root, *own, *none])
        columns[1].append([-1, *above, *none])
        columns[2].append([1] * (len(own) + 1) + none)
        columns[3].append(zero if role is None else [SCORED, *role[b], *none])
        columns[4].append(zero)
        columns[5].append([-1, *(zero[1:] if source is None else [*source[b], *none])])
    ids, above, live, roles, copies, sources = put(columns, roots.tokens.device).unbind(0)
    ranks = put(_padded([[0.0, *each] for each in score], width + 1, 0.0), roots.tokens.device, roots.score.dtype)
    return TokenTree(ids, above, live.bool(), roles, copies, ranks, sources)


def _padded(lists: list[list[T]], width: int, fill: T) -> list[list[T]]:
    return [x + [fill] * (width - len(x)) for x in lists]
