"""TokenProbs: probability distributions over a vocabulary, and what rules do with them.

Top-p leaves a few hundred of fifty thousand tokens. A distribution that holds only these makes every later operation a
hundred times smaller, so there are sparse layouts beside the dense one; the operations read the same for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.random import NARROW, invert, invert_sparse

if TYPE_CHECKING:
    from draftwood.core.sampling.draft_probs import Aligned, DraftProbs


@dataclass(frozen=True, slots=True, eq=False)
class TokenProbs:
    """R distributions. They need not sum to 1: what a rule has left of one is a distribution as well.

        dense    prob [R, V]                     every token has a column
        table    prob [R, W], ids [R, W]         W columns, each with its token
        packed   prob [Z], ids [Z], count [R]    one after another, each as long as it is; on the host

    In sparse layouts a token occurs at most once, and in packed ones ids rise. A column of a table that stands for no token
    has the id `vocab_size`; it is never picked.
    """

    prob: Float[Tensor, "..."]
    vocab_size: int
    ids: Int[Tensor, "..."] | None = None
    count: Int[Tensor, "R"] | None = None
    owners: Int[Tensor, "Z"] | None = None  # which packed distribution each entry belongs to, once it was asked for

    def __len__(self) -> int:
        return len(self.prob if self.count is None else self.count)

    def using(self, prob: Float[Tensor, "..."]) -> "TokenProbs":
        """Other probabilities of the same tokens."""
        return TokenProbs(prob, self.vocab_size, self.ids, self.count, self.owners)

    def owner(self) -> Int[Tensor, "Z"]:
        """Of packed distributions: which one each entry belongs to."""
        if self.owners is None:
            assert self.count is not None and self.ids is not None
            found = torch.repeat_interleave(self.count, output_size=len(self.ids))
            object.__setattr__(self, "owners", found)
            return found
        return self.owners

    # Layouts.

    def dense(self) -> Float[Tensor, "R V"]:
        """Probabilities of the whole vocabulary."""
        if self.ids is None:
            return self.prob
        if self.count is not None:
            probs = self.prob.new_zeros(len(self.count), self.vocab_size)
            return probs.index_put_((self.owner(), self.ids), self.prob)
        real = torch.where(self.ids < self.vocab_size, self.prob, 0.0)
        probs = self.prob.new_zeros(len(self.prob), self.vocab_size)
        return probs.scatter_add_(1, self.ids.clamp_max(self.vocab_size - 1), real)

    def table(self) -> "TokenProbs":
        """Packed distributions as a table, as wide as the broadest of them; others as they are."""
        if self.count is None or self.ids is None:
            return self
        if len(self.count) == 1 and len(self.ids):
            return TokenProbs(self.prob[None], self.vocab_size, self.ids[None])
        shape = len(self.count), max(1, int(self.count.max())) if len(self.count) else 1
        filled = torch.arange(shape[1]) < self.count[:, None]
        prob = self.prob.new_zeros(shape).masked_scatter_(filled, self.prob)
        ids = self.ids.new_full(shape, self.vocab_size).masked_scatter_(filled, self.ids)
        return TokenProbs(prob, self.vocab_size, ids)

    def widened(self, width: int) -> "TokenProbs":
        """A table with so many columns, the new ones empty."""
        more = width - self.prob.shape[1]
        if self.ids is None or not more:
            return self
        pad = torch.nn.functional.pad
        return TokenProbs(pad(self.prob, (0, more)), self.vocab_size, pad(self.ids, (0, more), value=self.vocab_size))

    # Which distributions.

    def take(self, index: Int[Tensor, "S"]) -> "TokenProbs":
        """Some of the distributions, which may come several times."""
        if self.count is None:
            return TokenProbs(self.prob[index], self.vocab_size, None if self.ids is None else self.ids[index])
        assert self.ids is not None
        count = self.count[index]
        shift = (self.count.cumsum(0) - self.count)[index] - (count.cumsum(0) - count)
        at = torch.repeat_interleave(shift, count)
        at += torch.arange(len(at))
        return TokenProbs(self.prob[at], self.vocab_size, self.ids[at], count)

    def scatter(self, index: Int[Tensor, "R"], size: int) -> "TokenProbs":
        """The same distributions at these rising places of `size`; the others are empty."""
        if self.count is not None:
            return TokenProbs(
                self.prob, self.vocab_size, self.ids, self.count.new_zeros(size).index_copy_(0, index, self.count)
            )
        assert self.ids is None
        return self.using(self.prob.new_zeros(size, self.vocab_size).index_copy_(0, index, self.prob))

    def put(self, other: "TokenProbs", where: Bool[Tensor, "R"]) -> "TokenProbs":
        """The distributions of `other` where asked, ours elsewhere."""
        if self.ids is other.ids:
            return self.using(torch.where(where[:, None], other.prob, self.prob))
        if self.ids is None or other.ids is None:
            return TokenProbs(torch.where(where[:, None], other.dense(), self.dense()), self.vocab_size)
        ours, theirs = self.table(), other.table()
        width = max(ours.prob.shape[1], theirs.prob.shape[1])
        ours, theirs = ours.widened(width), theirs.widened(width)
        assert ours.ids is not None and theirs.ids is not None
        mask = where[:, None]
        prob = torch.where(mask, theirs.prob, ours.prob)
        return TokenProbs(prob, self.vocab_size, torch.where(mask, theirs.ids, ours.ids))

    # Arithmetic. Two operands have the same tokens in the same places.

    def at(self, tokens: Int[Tensor, "R"]) -> Float[Tensor, "R"]:
        """The probability of one token in each distribution."""
        if self.ids is None:
            return self.prob.gather(1, tokens[:, None])[:, 0]
        if self.count is None:
            return torch.where(self.ids == tokens[:, None], self.prob, 0.0).sum(1)
        if not len(self.ids):
            return self.prob.new_zeros(len(tokens))
        # Distributions and tokens rise, so every token is found in one search.
        entry = self.owner() * self.vocab_size + self.ids
        wanted = torch.arange(len(tokens)) * self.vocab_size + tokens
        place = torch.searchsorted(entry, wanted).clamp_max(len(entry) - 1)
        return torch.where(entry[place] == wanted, self.prob[place], 0.0)

    def mass(self) -> Float[Tensor, "R"]:
        """What each distribution sums to, in float64."""
        if self.count is None:
            return self.prob.sum(-1, dtype=torch.float64)
        total = torch.zeros(len(self.count), dtype=torch.float64)
        return total.index_add_(0, self.owner(), self.prob.double())

    def minus(self, q: "TokenProbs", weight: Float[Tensor, "R"] | None = None) -> "TokenProbs":
        """(w p - q)+, p being ours: what draws from q cannot supply."""
        p = self.prob
        if weight is not None:
            w = weight.to(p.dtype)
            p = p * (w[:, None] if self.count is None else w[self.owner()])
        return self.using((p - q.prob).clamp_min_(0))

    def unless_empty(self, rest: "TokenProbs") -> "TokenProbs":
        """`rest` where it has mass, ours elsewhere. Rounding leaves nothing of p - q where p and q agree: then p serves."""
        return self.using(torch.where((rest.prob > 0).any(-1, keepdim=True), rest.prob, self.prob))

    def residual(self, q: "TokenProbs") -> "TokenProbs":
        """norm((p - q)+), or p itself where that is empty."""
        gap = self.minus(q).prob
        total = gap.sum(-1, keepdim=True)
        return self.using(torch.where(total > 0, gap / total, self.prob))

    def without(self, column: Int[Tensor, "R 1"]) -> "TokenProbs":
        """Without one column of each, the others renormalised; empty where nothing else is left."""
        left = self.prob.scatter(1, column, 0.0)
        total = left.sum(-1, keepdim=True)
        return self.using(torch.where(total > 0, left / total, left))

    # Choosing.

    def pick(self, u: Float[Tensor, "R 3"], where: Bool[Tensor, "R"]) -> Int[Tensor, "R"]:
        """A token of each distribution by inverse CDF, from three uniforms; -1 where nothing is asked for, or nothing has
        mass. The layout does not change it."""
        if self.ids is None or self.vocab_size <= NARROW or not host.on_host(self.prob.device):
            return torch.where(where, invert(self.dense(), u), -1)
        if self.count is not None:
            return invert_sparse(self.owner(), self.prob, self.ids, self.vocab_size, u, where)
        held = ((self.prob > 0) & (self.ids < self.vocab_size) & where[:, None]).nonzero(as_tuple=True)
        return invert_sparse(held[0], self.prob[held], self.ids[held], self.vocab_size, u, where)


class SamplingKernels(Protocol):
    """What a backend computes faster than stock operations: from logits to what the sampling options leave of them.

    Distribution i is that of row `at[i]` of `logits` under `params[i]`, without top-k; `at` -1: none. `best`: the place of
    the greatest logit in every row of `logits`, if it is known. None is returned if some row is no distribution.
    """

    def probs(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        params: Sequence[SamplingParams],
        best: Int[Tensor, "U"] | None = None,
        /,
    ) -> TokenProbs | None:
        """Packed distributions."""
        ...

    def aligned(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        params: Sequence[SamplingParams],
        best: Int[Tensor, "U"] | None,
        tokens: Int[Tensor, "R C"],
        q: Float[Tensor, "L V"],
        q_index: Int[Tensor, "R"],
        /,
    ) -> "Aligned | None":
        """The same and row `q_index` of q, -1 for none, over the same columns."""
        ...

    def pick(
        self,
        logits: Float[Tensor, "U V"],
        at: Int[Tensor, "R"],
        params: Sequence[SamplingParams],
        best: Int[Tensor, "U"] | None,
        u: Float[Tensor, "R 3"],
        /,
    ) -> Int[Tensor, "R"]:
        """A token of each distribution, from three uniforms; -1 where the row is no distribution or none is asked for."""
        ...

    def block_chances(
        self,
        logits: Float[Tensor, "U V"],
        at: list[int],
        temperature: float,
        q: "DraftProbs",
        q_index: list[int],
        tokens: list[int],
        /,
    ) -> tuple[list[float], list[float]] | None:
        """Of one chain of drawn tokens, each below the node of row `at[i]` and from distribution `q_index[i]`, under a plain
        temperature: the shares w that arrive at the nodes (one more than tokens) and the chances to stop at them, as the
        block rule has them."""
        ...

    def pick_left(
        self,
        logits: Float[Tensor, "U V"],
        at: int,
        temperature: float,
        w: float,
        q: "DraftProbs",
        q_index: int,
        u: Float[Tensor, "3"],
        /,
    ) -> int:
        """A token from norm((w p - q)+), p being row `at` under a plain temperature; from p where that is empty."""
        ...
