"""Pair: p and q at one node per row, over the columns that a rule can tell apart.

    a token of p's support | ... | a drawn child outside it | ... | all other tokens together

Where p is nothing, only q's mass counts: it can be drawn, and never kept. So tokens outside p's support share one column,
drawn children excepted, which may leave q. Without truncation every token has a column of its own, and it is the token.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.proposal import DraftProbs, Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.support import Beside, Support
from draftwood.core.scored import Scored
from draftwood.verifiers.family import Family


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Distributions beside each other; float64 where the columns are few."""

    p: Float[Tensor, "B W"]
    q: Float[Tensor, "B W"]  # zeros where nothing was drawn
    support: Support  # p with the tokens of the columns
    columns: Int[Tensor, "B C"]  # of the drawn children's tokens; any for others

    def pick(
        self, rnd: Round, node: Int[Tensor, "B"], probs: Float[Tensor, "B W"], where: Bool[Tensor, "B"]
    ) -> Int[Tensor, "B"]:
        """A token of what is left of p."""
        return rnd.pick_among("residual", node, probs, where, self.support.places)


def pair_at(proposal: Proposal, target: Scored, here: Family, where: Bool[Tensor, "B"]) -> Pair:
    """At one node per row, where asked."""
    probs, token = proposal.q_indices().gather(1, here.node[:, None])[:, 0], _drawn(here, target.vocab_size)
    found = target.beside(None, here.node, where, token, proposal.q, probs)
    if found is not None:
        return _known(found, target.vocab_size)
    return _pair(proposal, target.support(here.node, where), torch.where(where, probs, -1), here, token)


def pair_of(proposal: Proposal, target: Scored, rows: Int[Tensor, "R"], here: Family) -> Pair:
    """At one node of each of some rows, `here` being of those."""
    probs, token = proposal.q_indices()[rows, here.node], _drawn(here, target.vocab_size)
    found = target.beside(rows, here.node, None, token, proposal.q, probs)
    if found is not None:
        return _known(found, target.vocab_size)
    return _pair(proposal, target.support_of(rows, here.node), probs, here, token)


def _drawn(here: Family, vocab_size: int) -> Int[Tensor, "B C"]:
    """The tokens of drawn children."""
    return torch.where(here.copies > 0, here.token, vocab_size)


def _known(found: Beside, vocab_size: int) -> Pair:
    return Pair(found.p, found.q, Support(found.p, found.ids, vocab_size), found.columns)


def _pair(
    proposal: Proposal, support: Support, probs: Int[Tensor, "B"], here: Family, token: Int[Tensor, "B C"]
) -> Pair:
    if support.ids is not None:
        return _beside(proposal, support, probs, token)
    p = support.prob
    q = torch.zeros_like(p) if proposal.q is None else proposal.q.dense(probs, support.vocab_size).to(p.dtype)
    return Pair(p, q, support, here.token.clamp_min(0))


def _beside(proposal: Proposal, support: Support, probs: Int[Tensor, "B"], token: Int[Tensor, "B C"]) -> Pair:
    """p's support, a column for each of these tokens outside it, and one for the rest. `probs`: q's row, -1: none."""
    assert support.ids is not None
    most = token.shape[1]
    place = torch.searchsorted(support.ids, token).clamp_max(support.ids.shape[1] - 1)
    inside = support.ids.gather(1, place) == token
    own = torch.arange(support.ids.shape[1], support.ids.shape[1] + most, device=token.device)
    rest = torch.full_like(token[:, :1], support.vocab_size)
    ids = torch.cat([support.ids, torch.where(inside, support.vocab_size, token), rest], dim=1)
    # Float64, because the width, and with it the order of sums, depends on other rows: no coin should feel that.
    p = torch.zeros_like(ids, dtype=torch.float64)
    p[:, : support.prob.shape[1]] = support.prob
    q = torch.zeros_like(p) if proposal.q is None else _read(proposal.q, probs, ids, support.vocab_size)
    return Pair(p, q, replace(support, prob=p, ids=ids), torch.where(inside, place, own))


def _read(
    distributions: DraftProbs, rows: Int[Tensor, "B"], ids: Int[Tensor, "B W"], vocab_size: int
) -> Float[Tensor, "B W"]:
    """q at these tokens, and what it has elsewhere in the last column; zeros for row -1."""
    q = distributions.at(rows[:, None], ids, vocab_size).double()
    # Added up, not what is missing to one: where a sure token was drawn and taken away, the next one was drawn from what is
    # left, and that may be less than the rounding of one.
    elsewhere = torch.nn.functional.pad(distributions.dense(rows, vocab_size), (0, 1)).scatter_(1, ids, 0.0)
    q[:, -1] = elsewhere.sum(-1, dtype=torch.float64)
    return q
