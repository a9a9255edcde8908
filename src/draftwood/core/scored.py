"""Scored: what the target says about a proposal. Laws are made on demand, for visited nodes only."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.host import host, put
from draftwood.core.outline import Outline
from draftwood.core.passes import Seen
from draftwood.core.round import TARGET, Round
from draftwood.core.support import Support, likeliest
from draftwood.core.tree import TokenTree


class Scored:
    """One pass, read through the tree it scored."""

    def __init__(self, seen: Seen, tree: TokenTree, rnd: Round, outline: Outline | None = None) -> None:
        assert seen.row is not None
        self.seen, self.tree, self.rnd = seen, tree, rnd
        self._row = seen.row
        self._outline = outline
        self._best: Tensor | None = None
        # Rows whose choice is the plain argmax need no law at all; known on the host, so no shape depends on data.
        self._simple = [r.params.plain and r.params.greedy for r in rnd.requests]

    @property
    def outline(self) -> Outline:
        """The tree as lists; made when somebody asks, because it has to be copied from the device."""
        if self._outline is None:
            self._outline = Outline.of(self.tree)
        return self._outline

    @property
    def vocab(self) -> int:
        return self.seen.logits.shape[-1]

    def logits(self, nodes: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """Raw logits of some nodes."""
        return self.seen.logits[self.seen.at[self._row.gather(1, nodes.clamp_min(0))]]

    def law(self, nodes: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """p at these nodes, by the request's own sampling along the node's own path; at least float32."""
        return self.rnd.law(self.logits(nodes), self.tree, nodes, strict=True)

    def support(self, nodes: Int[Tensor, "B"], where: Bool[Tensor, "B"]) -> Support:
        """p at one node per row, where asked, over the tokens that sampling leaves; the whole vocabulary where it leaves
        them all. Rows that do not ask hold rubbish."""
        shaping = self.rnd.shaping
        if not shaping.few:
            return Support(self.law(nodes[:, None])[:, 0], None, self.vocab)
        if not self.plain:
            law = self.law(nodes[:, None])[:, 0]
            found = likeliest(law, torch.ones(len(law), dtype=torch.float64))
            return Support(law, None, self.vocab) if found is None else found
        everyone = bool(where.all())
        rows = torch.arange(len(nodes)) if everyone else where.nonzero()[:, 0]
        found = self.supports(rows, nodes[rows])
        if everyone:
            return found
        if found.ids is None:
            return Support(self.law(nodes[:, None])[:, 0], None, self.vocab)
        width = found.prob.shape[1]
        prob = found.prob.new_zeros(len(nodes), width).index_copy_(0, rows, found.prob)
        ids = found.ids.new_full((len(nodes), width), self.vocab).index_copy_(0, rows, found.ids)
        return Support(prob, ids, self.vocab)

    @property
    def plain(self) -> bool:
        """Whether every law follows from its logits alone, whatever stands before it."""
        return all(r.params.plain for r in self.rnd.requests)

    def supports(self, rows: Int[Tensor, "R"], nodes: Int[Tensor, "R"]) -> Support:
        """The same for any nodes of any rows, all together; only where laws are `plain`."""
        at = self.seen.at[self._row[rows, nodes.clamp_min(0)]]
        first, last = host(at[:1]), host(at[-1:])
        # One behind the other, they need no copy.
        together = last == [first[0] + len(at) - 1] and bool((at.diff() == 1).all()) if len(at) else False
        logits = self.seen.logits[first[0] : last[0] + 1] if together else self.seen.logits[at]
        shaping = self.rnd.shaping.take(host(rows))
        found = shaping.support(logits) if shaping.few else None
        return Support(shaping.law(logits[:, None])[:, 0], None, self.vocab) if found is None else found

    def best(self) -> Int[Tensor, "B N"]:
        """The most probable token after every node, without making a law; dead nodes hold rubbish."""
        if self._best is None:
            self._best = self.seen.logits.argmax(-1) if self.seen.best is None else self.seen.best
        return self._best[self.seen.at[self._row]]

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
            law = part.support(nodes[rows], where[rows])
            at = torch.full_like(nodes[rows], depth)
            drawn = part.rnd.pick_among(TARGET, at, law.prob, where[rows], law.places)
            token = drawn if isinstance(rows, slice) else token.index_copy(0, rows, drawn)
        return torch.where(where, token, -1)

    def feature(self, tap: int, nodes: Int[Tensor, "B K"]) -> Float[Tensor, "B K H"]:
        """Tapped features of some nodes."""
        return self.seen.features[tap][self._row.gather(1, nodes.clamp_min(0))]

    def over(self, tree: TokenTree) -> "Scored":
        """The same pass, read through the same tree with some nodes cut."""
        return Scored(self.seen, tree, self.rnd)

    def take(self, rows: list[int]) -> "Scored":
        """The same pass, seen by some rows of the round."""
        index = torch.tensor(rows, device=self.tree.tokens.device)
        return Scored(replace(self.seen, row=self._row[index]), self.tree.take(index), self.rnd.take(rows))
