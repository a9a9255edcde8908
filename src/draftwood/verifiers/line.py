"""p and q at many nodes at once, each with one drawn child: what a rule needs that judges whole chains.

Where truncation leaves few tokens the distributions lie one behind the other: a table would be as wide as the broadest of them,
and one may leave thousands where most leave a dozen. Tokens outside p's support need no place, for nothing is missing there.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.proposal import Proposal
from draftwood.core.sampling.support import Few, Support
from draftwood.core.scored import Scored

_ROWS, _ENTRIES = 64, 2**20  # distributions that exist at the same time: as tables, and one behind the other


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Distributions over the whole vocabulary."""

    p: Float[Tensor, "R V"]
    q: Float[Tensor, "R V"]
    top: Float[Tensor, "R"]  # p and q of the drawn child
    bottom: Float[Tensor, "R"]

    def missing(self, w: Float[Tensor, "R"]) -> Float[Tensor, "R"]:
        """sum (w p - q)+"""
        return missing(w, self.p, self.q).sum(-1, dtype=torch.float64)

    def left(self, rows: Int[Tensor, "B"], w: Float[Tensor, "B"]) -> Support:
        """(w p - q)+ of some of them."""
        p = self.p[rows]
        rest = missing(w, p, self.q[rows])
        return Support(unless_empty(rest, p), None, p.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Distributions over few tokens; float64."""

    p: Few
    row: Int[Tensor, "Z"]
    q: Float[Tensor, "Z"]
    top: Float[Tensor, "R"]
    bottom: Float[Tensor, "R"]

    def missing(self, w: Float[Tensor, "R"]) -> Float[Tensor, "R"]:
        gap = (w[self.row] * self.p.prob - self.q).clamp_min_(0)
        return torch.zeros_like(w).index_add_(0, self.row, gap)

    def left(self, rows: Int[Tensor, "B"], w: Float[Tensor, "B"]) -> Support:
        p = self.p.take(rows).table()
        q = Few(self.q, self.p.ids, self.p.count, self.p.vocab_size).take(rows).table()
        return Support(unless_empty(missing(w, p.prob, q.prob), p.prob), p.ids, p.vocab_size)


def at_once(before: Tables | Lists | None) -> int:
    """How many distributions to ask for together, judging by the last ones."""
    return _ROWS if not isinstance(before, Lists) else max(_ROWS, _ENTRIES * len(before.top) // max(len(before.q), 1))


def pairs_at(
    proposal: Proposal, target: Scored, row: Int[Tensor, "R"], node: Int[Tensor, "R"], child: Int[Tensor, "R"]
) -> Tables | Lists:
    """At any nodes of any rows, each with the child that was drawn there; only where distributions are `plain`."""
    assert proposal.q is not None
    token, probs, few = proposal.tree.tokens[row, child], proposal.q_indices()[row, node], target.few(row, node)
    if few is None:
        p, q = target.distributions(row, node), proposal.q.dense(probs, target.vocab_size)
        q, at = q.to(p.dtype), token[:, None]
        return Tables(p, q, p.gather(1, at)[:, 0].double(), q.gather(1, at)[:, 0].double())
    whose, prob = few.row(), few.prob.double()
    q = proposal.q.at(probs[whose], few.ids, target.vocab_size).double()
    bottom = proposal.q.at(probs, token, target.vocab_size).double()
    # Rows and tokens rise, so each child is looked up in one search.
    entry, asked = whose * target.vocab_size + few.ids, torch.arange(len(probs)) * target.vocab_size + token
    at = torch.searchsorted(entry, asked).clamp_max(len(entry) - 1)
    top = torch.where(entry[at] == asked, prob[at], 0.0)
    return Lists(Few(prob, few.ids, few.count, few.vocab_size), whose, q, top, bottom)


def missing(w: Float[Tensor, "B"], p: Float[Tensor, "B V"], q: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """(w p - q)+: what the drawn child cannot supply."""
    return (w.to(p.dtype)[:, None] * p - q).clamp_min(0)


def unless_empty(rest: Float[Tensor, "B V"], p: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
    """What is missing. Nothing is only where p and q agree, and the child is kept then, up to rounding: so p serves."""
    return torch.where((rest > 0).any(-1, keepdim=True), rest, p)
