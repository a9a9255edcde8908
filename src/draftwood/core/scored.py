"""Scored: what the target says about a proposal. Laws are made on demand, for visited nodes only."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.host import put
from draftwood.core.outline import Outline
from draftwood.core.passes import Seen
from draftwood.core.round import TARGET, Round
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
            law = part.law(nodes[rows][:, None])[:, 0]
            drawn = part.rnd.pick(TARGET, torch.full_like(nodes[rows], depth), law, where[rows])
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
