"""Pair: p and q at one node per row, over the columns that a rule can tell apart.

    a token of p's support | ... | a drawn child outside it | ... | all other tokens together

Where p is nothing, only q's mass counts: it can be drawn, and never kept. So tokens outside p's support share one column,
drawn children excepted, which may leave q. Without truncation every token has a column of its own, and it is the token.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.proposal import Laws, Proposal
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.support import Support
from draftwood.verifiers.draws import law_at, untried


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Laws beside each other; float64 where the columns are few."""

    p: Float[Tensor, "B W"]
    q: Float[Tensor, "B W"]  # zeros where nothing was drawn
    support: Support  # p with the tokens of the columns
    columns: Int[Tensor, "B N"]  # of the drawn children's tokens; any for other nodes

    def column(self, node: Int[Tensor, "B"]) -> Int[Tensor, "B 1"]:
        """Of a drawn child."""
        return self.columns.gather(1, node[:, None])

    def pick(
        self, rnd: Round, node: Int[Tensor, "B"], law: Float[Tensor, "B W"], where: Bool[Tensor, "B"]
    ) -> Int[Tensor, "B"]:
        """A token of what is left of p."""
        return rnd.pick_among("residual", node, law, where, self.support.places)


def pair_at(proposal: Proposal, target: Scored, node: Int[Tensor, "B"], where: Bool[Tensor, "B"]) -> Pair:
    """At one node per row, where asked."""
    tree, support = proposal.tree, target.support(node, where)
    if support.ids is None:
        return Pair(support.prob, law_at(proposal, node, where, support.prob), support, tree.tokens)
    drawn = untried(proposal, node) > 0
    most = int(drawn.sum(1).max())
    child = (~drawn).int().sort(dim=1, stable=True).indices[:, :most]  # [B, C] drawn children first
    token = torch.where(drawn.gather(1, child), tree.tokens.gather(1, child), support.vocab)
    law = torch.where(where, proposal.rows().gather(1, node[:, None])[:, 0], -1)
    found = _beside(proposal, support, law, token)
    return replace(found, columns=torch.zeros_like(tree.tokens).scatter_(1, child, found.columns))


def pairs_at(
    proposal: Proposal, target: Scored, row: Int[Tensor, "R"], node: Int[Tensor, "R"], child: Int[Tensor, "R"]
) -> Pair:
    """At any nodes of any rows, each with one drawn child; `columns` are of those."""
    support, token = target.supports(row, node), proposal.tree.tokens[row, child][:, None]
    law = proposal.rows()[row, node]
    if support.ids is not None:
        return _beside(proposal, support, law, token)
    q = torch.zeros_like(support.prob) if proposal.q is None else proposal.q.dense(law, support.vocab)
    return Pair(support.prob, q.to(support.prob.dtype), support, token)


def _beside(proposal: Proposal, support: Support, law: Int[Tensor, "B"], token: Int[Tensor, "B C"]) -> Pair:
    """p's support, a column for each of these tokens outside it, and one for the rest. `law`: q's row, -1: none."""
    assert support.ids is not None
    most = token.shape[1]
    place = torch.searchsorted(support.ids, token).clamp_max(support.ids.shape[1] - 1)
    inside = support.ids.gather(1, place) == token
    own = torch.arange(support.ids.shape[1], support.ids.shape[1] + most, device=token.device)
    ids = torch.cat([support.ids, torch.where(inside, support.vocab, token)], dim=1)
    ids = torch.nn.functional.pad(ids, (0, 1), value=support.vocab)
    # Float64, because the width, and with it the order of sums, depends on other rows: no coin should feel that.
    p = torch.nn.functional.pad(support.prob.double(), (0, most + 1))
    q = torch.zeros_like(p) if proposal.q is None else _read(proposal.q, law, ids, support.vocab)
    return Pair(p, q, replace(support, prob=p, ids=ids), torch.where(inside, place, own))


def _read(laws: Laws, rows: Int[Tensor, "B"], ids: Int[Tensor, "B W"], vocab: int) -> Float[Tensor, "B W"]:
    """q at these tokens, and what it has elsewhere in the last column; zeros for row -1."""
    there = (rows >= 0)[:, None] & (ids < vocab)
    if laws.ids is None:
        at = rows.clamp_min(0)
        # Many rows are not copied to be added up. In float64, because the order of a sum depends on the number of rows.
        many = 2 * len(at) > laws.num_rows
        total = laws.prob.sum(-1, dtype=torch.float64)[at] if many else laws.prob[at].sum(-1, dtype=torch.float64)
        found = laws.prob[at[:, None], ids.clamp_max(vocab - 1)]
    else:
        whole = laws.dense(rows, vocab)
        total, found = whole.sum(-1, dtype=torch.float64), whole.gather(1, ids.clamp_max(vocab - 1))
    q = torch.where(there, found.double(), 0.0)
    q[:, -1] = torch.where(rows >= 0, (total - q.sum(-1)).clamp_min(0.0), 0.0)
    return q
