"""The distributions that drafted tokens were drawn from, and how they are brought onto the target's tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.sampling.probs import TokenProbs


@dataclass(frozen=True, slots=True, eq=False)
class DraftProbs:
    """What children were really drawn from: R stored distributions over W columns, at least float32."""

    prob: Float[Tensor, "R W"]
    ids: Int[Tensor, "W"] | Int[Tensor, "R W"] | None = None  # token of each column; None = the whole vocabulary

    @property
    def num_distributions(self) -> int:
        return self.prob.shape[0]

    @property
    def rising(self) -> bool:
        """Whether all distributions have the same columns, in the order of their tokens, as drafters keep the ids of a
        head."""
        return self.ids is None or (self.ids.ndim == 1 and self.ids.dtype == torch.int64)

    def kernels_read(self, vocab_size: int) -> bool:
        """Whether kernels can read it: contiguous float32 over the whole vocabulary."""
        prob = self.prob
        return self.ids is None and prob.shape[1] == vocab_size and prob.dtype == torch.float32 and prob.is_contiguous()

    def join(self, other: "DraftProbs") -> "DraftProbs":
        """The distributions of `other` after ours; both must have the same number of columns."""
        if self.ids is other.ids and (self.ids is None or self.ids.ndim == 1):
            return DraftProbs(torch.cat([self.prob, other.prob]), self.ids)
        ids, other_ids = (_own_ids(probs) for probs in (self, other))
        return DraftProbs(torch.cat([self.prob, other.prob]), torch.cat([ids, other_ids]))

    def dense(self, index: Int[Tensor, "B"], vocab_size: int) -> Float[Tensor, "B V"]:
        """Some of the distributions over the whole vocabulary; -1 gives zeros."""
        prob = self.prob[index.clamp_min(0)] * (index >= 0)[:, None]
        if self.ids is None:
            return prob
        ids = self.ids if self.ids.ndim == 1 else self.ids[index.clamp_min(0)]
        return prob.new_zeros(len(index), vocab_size).scatter_(1, ids.expand_as(prob), prob)

    def at(self, index: Int[Tensor, "*#S"], tokens: Int[Tensor, "*S"], vocab_size: int) -> Float[Tensor, "*S"]:
        """Of single tokens, each in the distribution named beside it; index -1 and the id `vocab_size` have nothing."""
        there = (index >= 0) & (tokens < vocab_size)
        which, token = index.clamp_min(0), tokens.clamp_max(vocab_size - 1)
        if self.ids is None:
            flat = self.prob.is_contiguous()
            found = self.prob.view(-1)[which * vocab_size + token] if flat else self.prob[which, token]
            return torch.where(there, found, 0.0)
        every = torch.arange(self.prob.shape[self.ids.ndim == 1], device=which.device)
        if self.ids.ndim == 2:
            return torch.where(there, self.dense(every, vocab_size)[which, token], 0.0)
        column = torch.full((vocab_size,), -1, device=which.device).index_copy_(0, self.ids, every)[token]
        return torch.where(there & (column >= 0), self.prob[which, column.clamp_min(0)], 0.0)

    def over(self, p: TokenProbs, index: Int[Tensor, "R"]) -> TokenProbs:
        """The distributions `index` at the entries of dense or packed p and nowhere else."""
        if p.ids is None:
            return TokenProbs(self.dense(index, p.vocab_size).to(p.prob.dtype), p.vocab_size)
        q = self.at(index[p.owner()], p.ids, p.vocab_size)
        return p.using(q.to(p.prob.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """p and q over the same columns, dense or as a table:

        a token of p | ... | a token asked for that p does not have | ... | all other tokens together

    Where p is nothing only q's mass counts: it can be drawn and is never kept. So tokens outside p share one column,
    except those asked for, which a rule may take out of q. Tables are float64: their width, and with it the order of sums,
    depends on other sequences, and no coin may change because of that.
    """

    p: TokenProbs
    q: TokenProbs  # zeros where nothing was drawn
    columns: Int[Tensor, "R C"]  # of the tokens asked for


def align(p: TokenProbs, q: DraftProbs | None, q_index: Int[Tensor, "R"], tokens: Int[Tensor, "R C"]) -> Aligned:
    """Bring distributions of q, -1 for none, onto the columns of p. `tokens` get columns of their own; the id `vocab_size`
    is no token, and its column is any."""
    if p.ids is None:
        own = torch.zeros_like(p.prob) if q is None else q.over(p, q_index).prob
        return Aligned(p, p.using(own), tokens.clamp_max(p.vocab_size - 1))
    p = p.table()
    assert p.ids is not None
    width, most = p.ids.shape[1], tokens.shape[1]
    place = torch.searchsorted(p.ids, tokens).clamp_max(width - 1)
    inside = p.ids.gather(1, place) == tokens
    rest = torch.full_like(tokens[:, :1], p.vocab_size)
    ids = torch.cat([p.ids, torch.where(inside, p.vocab_size, tokens), rest], dim=1)
    prob = torch.zeros_like(ids, dtype=torch.float64)
    prob[:, :width] = p.prob
    own = torch.zeros_like(prob) if q is None else with_rest(q, q_index, ids, p.vocab_size)
    columns = torch.where(inside, place, torch.arange(width, width + most, device=tokens.device))
    p = TokenProbs(prob, p.vocab_size, ids)
    return Aligned(p, p.using(own), columns)


def with_rest(q: DraftProbs, index: Int[Tensor, "R"], ids: Int[Tensor, "R W"], vocab_size: int) -> Float[Tensor, "R W"]:
    """q at these tokens, and what it has elsewhere in the last column; zeros for index -1."""
    own = q.at(index[:, None], ids, vocab_size).double()
    # Added up, not what is missing to one: where a sure token was drawn and taken away, the next one was drawn from what is
    # left, and that may be less than the rounding of one.
    elsewhere = torch.nn.functional.pad(q.dense(index, vocab_size), (0, 1)).scatter_(1, ids, 0.0)
    own[:, -1] = elsewhere.sum(-1, dtype=torch.float64)
    return own


def _own_ids(probs: DraftProbs) -> Int[Tensor, "R W"]:
    """The token of every column of every distribution."""
    if probs.ids is None:
        return torch.arange(probs.prob.shape[1], device=probs.prob.device).expand_as(probs.prob)
    return probs.ids.expand(probs.prob.shape) if probs.ids.ndim == 1 else probs.ids
