"""TokenTree: candidate continuations of B sequences, as flat arrays and pure functions.

            0 root: newest committed token, not yet in the target's cache
           / \\
          1   2          parents  [-1, 0, 0, 1, 1, 2]
         / \\   \\         depths   [ 0, 1, 1, 2, 2, 2]
        3   4   5        node 4's ancestors: {0, 1, 4}

Parents stand before children and drawn siblings in draw order; both are contracts, not accidents: verifiers visit
siblings by index. Dead nodes (padding or cut) stay in place until `compact` renumbers.
"""

import math
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SCORED = 0  # checked in this pass
AHEAD = 1  # drafted for the next pass; may only become the next root
PROBE = 2  # in the pass, never accepted

_WORD = 63  # bits used of an int64, so that the sign bit never takes part


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Flat trees of one round. `copies`: 0 = given without a distribution, 1 = drawn, c > 1 = c equal iid draws merged."""

    tokens: Int[Tensor, "B N"]
    parents: Int[Tensor, "B N"]  # parents[:, 0] == -1, otherwise parents[b, i] < i
    live: Bool[Tensor, "B N"]
    role: Int[Tensor, "B N"]
    copies: Int[Tensor, "B N"]
    score: Float[Tensor, "B N"]  # rank known before the own token was drawn; never grows along a path
    source: Int[Tensor, "B N"]  # which drafter proposed it

    @staticmethod
    def roots(tokens: Int[Tensor, "B"]) -> "TokenTree":
        """The bare root of each sequence: what an undrafted round verifies."""
        one = tokens[:, None]
        zero = torch.zeros_like(one)
        none = zero - 1
        return TokenTree(
            tokens=one,
            parents=none,
            live=torch.ones_like(one, dtype=torch.bool),
            role=zero,
            copies=zero,
            score=zero.to(torch.float32),
            source=none,
        )

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]

    def _above(self) -> Int[Tensor, "B N"]:
        """Parents as indices in range, also of dead nodes, which may name any number. The root is its own parent."""
        return self.parents.clamp(0, max(self.num_nodes - 1, 0))

    def depths(self, levels: int | None = None) -> Int[Tensor, "B N"]:
        """Distance from the root, by pointer doubling: log2(N) gathers instead of N steps. `levels`: of nodes that are
        deeper it is only known that they are, which takes log2(levels) gathers."""
        depth = (self.parents >= 0).long()
        jump = self._above()
        for _ in range(self._doublings(levels)):
            depth = depth + depth.gather(1, jump)
            jump = jump.gather(1, jump)
        return depth

    def ancestor_bits(self) -> Int[Tensor, "B N words"]:
        """Bit j of node i is set when j is i or an ancestor of i; 63 bits a word."""
        batch, nodes = self.tokens.shape
        words = -(-nodes // _WORD)
        index = torch.arange(nodes, device=self.tokens.device)
        own = torch.zeros(nodes, words, dtype=torch.int64, device=self.tokens.device)
        own[index, index // _WORD] = torch.ones_like(index) << (index % _WORD)
        bits = own.expand(batch, nodes, words)
        jump = self._above()
        for _ in range(self._doublings()):
            bits = bits | bits.gather(1, jump[..., None].expand(-1, -1, words))
            jump = jump.gather(1, jump)
        return bits

    def ancestors(self) -> Bool[Tensor, "B N N"]:
        """`ancestors()[b, i, j]`: j is i itself or stands on the path from the root to i."""
        bits = self.ancestor_bits()
        index = torch.arange(self.num_nodes, device=bits.device)
        return ((bits[:, :, index // _WORD] >> (index % _WORD)) & 1).bool()

    def below(self, mask: Bool[Tensor, "B N"], levels: int | None = None) -> Bool[Tensor, "B N"]:
        """The nodes of `mask` and all that hangs below them. `levels`: no live node is deeper."""
        jump = self._above()
        for _ in range(self._doublings(levels)):
            mask = mask | mask.gather(1, jump)
            jump = jump.gather(1, jump)
        return mask

    def children(self, node: Int[Tensor, "B"]) -> Bool[Tensor, "B N"]:
        """Live children of one node of each sequence that this pass scores."""
        return self.live & (self.role == SCORED) & (self.parents == node[:, None])

    def child(self, node: Int[Tensor, "B"], token: Int[Tensor, "B"]) -> Int[Tensor, "B"]:
        """The live scored child of `node` that carries `token`, or -1."""
        hit = self.children(node) & (self.tokens == token[:, None])
        return torch.where(hit.any(1), hit.int().argmax(1), -1)

    def path_tokens(self, nodes: Int[Tensor, "B K"]) -> Int[Tensor, "B K N"]:
        """Drafted tokens on the way to each node, root left out; -1 where a node is not on the path."""
        on_path = self.ancestors().gather(1, nodes.clamp_min(0)[..., None].expand(-1, -1, self.num_nodes)).clone()
        on_path[..., 0] = False
        return torch.where(on_path, self.tokens[:, None, :], -1)

    def add(
        self,
        parents: Int[Tensor, "B M"],
        tokens: Int[Tensor, "B M"],
        *,
        live: Bool[Tensor, "B M"],
        copies: int | Int[Tensor, "B M"] = 1,
        score: Float[Tensor, "B M"] | None = None,
        source: int | Int[Tensor, "B M"] = 0,
        role: int = SCORED,
    ) -> "TokenTree":
        """M new nodes behind the others. A dead or missing parent makes a dead child."""
        at = parents.clamp_min(0)
        live = live & (parents >= 0) & self.live.gather(1, at) & (tokens >= 0)
        if score is None:
            score = self.score.gather(1, at) - 1
        return self.append(
            tokens=torch.where(live, tokens, 0),
            parents=at,
            live=live,
            score=score.to(self.score.dtype),
            copies=torch.where(live, copies, 0),
            source=torch.full_like(tokens, source) if isinstance(source, int) else source.expand_as(tokens),
            role=torch.full_like(tokens, role),
        )

    def append(
        self,
        *,
        tokens: Int[Tensor, "B M"],
        parents: Int[Tensor, "B M"],
        live: Bool[Tensor, "B M"],
        score: Float[Tensor, "B M"],
        copies: Int[Tensor, "B M"] | None = None,
        source: Int[Tensor, "B M"] | None = None,
        role: Int[Tensor, "B M"] | None = None,
    ) -> "TokenTree":
        """M columns behind the others, just as they are: for callers whose live nodes are valid by construction. Nodes
        are given, of source 0 and scored unless said otherwise."""
        zero = torch.zeros_like(tokens)
        return TokenTree(
            tokens=torch.cat([self.tokens, tokens], dim=1),
            parents=torch.cat([self.parents, parents], dim=1),
            live=torch.cat([self.live, live], dim=1),
            role=torch.cat([self.role, zero if role is None else role], dim=1),
            copies=torch.cat([self.copies, zero if copies is None else copies], dim=1),
            score=torch.cat([self.score, score], dim=1),
            source=torch.cat([self.source, zero if source is None else source], dim=1),
        )

    def keep(self, mask: Bool[Tensor, "B N"], levels: int | None = None) -> "TokenTree":
        """Cut the nodes outside `mask` and all that hangs below them; numbers stay. The root always stays. `levels`: no
        live node is deeper."""
        cut = ~(self.live & mask)
        cut[:, 0] = False
        return replace(self, live=~self.below(cut, levels))

    def compact(self, nodes: int) -> tuple["TokenTree", Int[Tensor, "B nodes"]]:
        """Live nodes moved to the front in their old order, cut or padded to `nodes` columns; also the old index of each."""
        order = torch.argsort((~self.live).long(), dim=1, stable=True)
        back = torch.argsort(order, dim=1)
        moved = self.take_nodes(order)
        parents = torch.where(moved.parents >= 0, back.gather(1, moved._above()), -1)
        parents = torch.where(moved.live, parents, 0)
        parents[:, 0] = -1
        return replace(moved, parents=parents).resize(nodes), fit(order, nodes, 0)

    def resize(self, nodes: int) -> "TokenTree":
        """Dead columns added, or columns cut, so that there are exactly `nodes`."""
        fill = {"live": False, "source": -1}
        return TokenTree(**{f.name: fit(getattr(self, f.name), nodes, fill.get(f.name, 0)) for f in fields(self)})

    def take_nodes(self, order: Int[Tensor, "B M"]) -> "TokenTree":
        """Nodes picked per sequence; parents keep their old numbers, so only callers that renumber use this."""
        return TokenTree(**{f.name: getattr(self, f.name).gather(1, order) for f in fields(self)})

    def take(self, sequences: Int[Tensor, "R"]) -> "TokenTree":
        """Some sequences of the batch."""
        return TokenTree(**{f.name: getattr(self, f.name)[sequences] for f in fields(self)})

    def _doublings(self, levels: int | None = None) -> int:
        """Steps after which every node has reached the root, if the tree is no deeper than this."""
        deepest = self.num_nodes - 1 if levels is None else min(levels, self.num_nodes - 1)
        return max(1, math.ceil(math.log2(max(deepest + 1, 2))))

    def num_drafted(self) -> Int[Tensor, "B"]:
        """Live scored nodes below the root."""
        return (self.live & (self.role == SCORED))[:, 1:].sum(1)

    def num_in_pass(self) -> Int[Tensor, "B"]:
        """Live nodes below the root that the pass runs: scored ones and probes. Each takes a staged entry."""
        return (self.live & (self.role != AHEAD))[:, 1:].sum(1)


def fit(x: Tensor, columns: int, fill: float) -> Tensor:
    """Columns cut, or filled up with `fill`, so that there are exactly so many."""
    if x.shape[1] >= columns:
        return x[:, :columns]
    pad = x.new_full((x.shape[0], columns - x.shape[1]), fill)
    return torch.cat([x, pad], dim=1)
