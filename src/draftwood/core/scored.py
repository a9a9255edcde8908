"""Scored: what the target says about a proposal. Distributions are made on demand, for visited nodes only."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardOutput
from draftwood.core.host import host, put
from draftwood.core.host_tree import HostTree
from draftwood.core.proposal import DraftProbs
from draftwood.core.round import TARGET, Round
from draftwood.core.sampling.support import Beside, Few, Support, likeliest
from draftwood.core.tree import TokenTree


class Scored:
    """One pass, read through the tree it scored."""

    def __init__(self, output: ForwardOutput, tree: TokenTree, rnd: Round, host_tree: HostTree | None = None) -> None:
        assert output.token_index is not None
        self.output, self.tree, self.rnd = output, tree, rnd
        self._token_index = output.token_index
        self._host_tree = host_tree
        self._best: Tensor | None = None
        self._short: bool | None = None
        # Rows whose choice is the plain argmax need no distribution at all; known on the host, so no shape depends on data.
        self._simple = [r.params.plain and r.params.greedy for r in rnd.requests]

    @property
    def host_tree(self) -> HostTree:
        """The tree as lists; made when somebody asks, because it has to be copied from the device."""
        if self._host_tree is None:
            self._host_tree = HostTree.of(self.tree)
        return self._host_tree

    @property
    def vocab_size(self) -> int:
        return self.output.logits.shape[-1]

    def logits(self, nodes: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """Raw logits of some nodes."""
        return self.output.logits[self.output.logits_index[self._token_index.gather(1, nodes.clamp_min(0))]]

    def probs(self, nodes: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """p at these nodes, by the request's own sampling along the node's own path; at least float32."""
        return self.rnd.probs(self.logits(nodes), self.tree, nodes, strict=True, cut=self.output.cut)

    def support(self, nodes: Int[Tensor, "B"], where: Bool[Tensor, "B"]) -> Support:
        """p at one node per row, where asked, over the tokens that sampling leaves; the whole vocabulary where it leaves
        them all. Rows that do not ask hold rubbish."""
        if not self.rnd.shaping.few:
            return Support(self.probs(nodes[:, None])[:, 0], None, self.vocab_size)
        if not self.plain:
            probs = self.probs(nodes[:, None])[:, 0]
            found = likeliest(probs, torch.ones(len(probs), dtype=torch.float64))
            return Support(probs, None, self.vocab_size) if found is None else found.table()
        rows = where.nonzero()[:, 0]
        found = self.few(rows, nodes[rows])
        if found is None:
            return Support(self.probs(nodes[:, None])[:, 0], None, self.vocab_size)
        return (found if len(rows) == len(nodes) else found.among(rows, len(nodes))).table()

    def support_of(self, rows: Int[Tensor, "R"], nodes: Int[Tensor, "R"]) -> Support:
        """The same at one node of each of some rows. Which columns there are is decided by the whole round, so that what
        was asked for at different times fits together."""
        if not self.plain or not self.rnd.shaping.few:
            part = self if len(rows) == self.rnd.batch else self.take(host(rows))
            if not self.rnd.shaping.few:
                return Support(part.probs(nodes[:, None])[:, 0], None, self.vocab_size)
            return part.support(nodes, torch.ones_like(nodes, dtype=torch.bool))
        found = self.few(rows, nodes)
        return Support(self.distributions(rows, nodes), None, self.vocab_size) if found is None else found.table()

    def beside(
        self,
        rows: Int[Tensor, "R"] | None,
        nodes: Int[Tensor, "R"],
        where: Bool[Tensor, "R"] | None,
        tokens: Int[Tensor, "R C"],
        q: DraftProbs | None,
        probs: Int[Tensor, "R"],
    ) -> Beside | None:
        """p at one node of each of some rows, or of all, where asked, and these rows of q beside it, if the backend has kernels
        for that and sampling leaves few tokens. `tokens` get columns, too; `vocab_size` is no token."""
        cut = self.output.cut
        if cut is None or q is None or not q.whole(self.vocab_size) or not self._brief():
            return None
        at = self.output.logits_index[
            self._token_index.gather(1, nodes[:, None])[:, 0] if rows is None else self._token_index[rows, nodes]
        ]
        at = at if where is None else torch.where(where, at, -1)
        whose = range(self.rnd.batch) if rows is None else host(rows)
        return cut.beside(
            self.rnd.shaping.uncut(self.output.logits, at, whose, self.output.best), tokens, q.prob, probs
        )

    def _brief(self) -> bool:
        """Whether a backend's kernels can make every distribution there is."""
        if self._short is None:
            self._short = self.plain and all(self.rnd.shaping.short)
        return self._short

    @property
    def plain(self) -> bool:
        """Whether every distribution follows from its logits alone, whatever stands before it."""
        return all(r.params.plain for r in self.rnd.requests)

    def few(self, rows: Int[Tensor, "R"], nodes: Int[Tensor, "R"]) -> Few | None:
        """p at any nodes of any rows, all together, where distributions are `plain` and sampling leaves few tokens. None where it
        does not, or where a row is no distribution."""
        at = self.output.logits_index[self._token_index[rows, nodes.clamp_min(0)]]
        shaping, cut, listed = self.rnd.shaping, self.output.cut, host(rows)
        if cut is not None and all(shaping.short):
            return cut(shaping.uncut(self.output.logits, at, listed, self.output.best))
        shaping = shaping.take(listed)
        return shaping.support(self._rows(at), cut) if shaping.few else None

    def distributions(self, rows: Int[Tensor, "R"], nodes: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        """The same over the whole vocabulary, however sampling is."""
        at = self.output.logits_index[self._token_index[rows, nodes.clamp_min(0)]]
        return self.rnd.shaping.take(host(rows)).probs(self._rows(at)[:, None], cut=self.output.cut)[:, 0]

    def _rows(self, at: Int[Tensor, "R"]) -> Float[Tensor, "R V"]:
        """Logits; one behind the other, they need no copy."""
        first, last = host(at[:1]), host(at[-1:])
        together = last == [first[0] + len(at) - 1] and bool((at.diff() == 1).all()) if len(at) else False
        return self.output.logits[first[0] : last[0] + 1] if together else self.output.logits[at]

    def best(self) -> Int[Tensor, "B N"]:
        """The most probable token after every node, without making a distribution; dead nodes hold rubbish."""
        if self._best is None:
            self._best = self.output.logits.argmax(-1) if self.output.best is None else self.output.best
        return self._best[self.output.logits_index[self._token_index]]

    @property
    def simple(self) -> bool:
        """Whether every row's choice is the plain argmax."""
        return all(self._simple)

    def token(self, nodes: Int[Tensor, "B"], depth: int, where: Bool[Tensor, "B"]) -> Int[Tensor, "B"]:
        """The target's own token after each node, `depth` below the root: what plain decoding would emit there."""
        token = torch.full_like(nodes, -1)
        if any(self._simple):
            token = self.best().gather(1, nodes.clamp_min(0)[:, None])[:, 0]
        rest = [b for b, simple in enumerate(self._simple) if not simple]
        if rest:
            everyone = len(rest) == self.rnd.batch
            part = self if everyone else self.take(rest)
            rows = slice(None) if everyone else put(rest, nodes.device)
            probs = part.support(nodes[rows], where[rows])
            at = torch.full_like(nodes[rows], depth)
            drawn = part.rnd.pick_among(TARGET, at, probs.prob, where[rows], probs.places)
            token = drawn if isinstance(rows, slice) else token.index_copy(0, rows, drawn)
        return torch.where(where, token, -1)

    def feature(self, tap: int, nodes: Int[Tensor, "B K"]) -> Float[Tensor, "B K H"]:
        """Tapped features of some nodes."""
        return self.output.features[tap][self._token_index.gather(1, nodes.clamp_min(0))]

    def over(self, tree: TokenTree) -> "Scored":
        """The same pass, read through the same tree with some nodes cut."""
        return Scored(self.output, tree, self.rnd)

    def take(self, rows: list[int]) -> "Scored":
        """The same pass, output by some rows of the round."""
        index = torch.tensor(rows, device=self.tree.tokens.device)
        return Scored(
            replace(self.output, token_index=self._token_index[index]), self.tree.take(index), self.rnd.take(rows)
        )
