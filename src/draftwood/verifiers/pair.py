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
    place = torch.searchsorted(support.ids, token).clamp_max(support.ids.shape[1] - 1)
    inside = support.ids.gather(1, place) == token
    own = support.ids.shape[1] + torch.arange(most, device=token.device).expand_as(token)
    columns = torch.zeros_like(tree.tokens).scatter_(1, child, torch.where(inside, place, own))
    rest = torch.full_like(node, support.vocab)[:, None]
    ids = torch.cat([support.ids, torch.where(inside, support.vocab, token), rest], dim=1)
    # Float64, because the width, and with it the order of sums, depends on other rows: no coin should feel that.
    p = torch.nn.functional.pad(support.prob.double(), (0, most + 1))
    q = _draft(proposal, node, where, ids, p)
    return Pair(p, q, replace(support, prob=p, ids=ids), columns)


def _draft(
    proposal: Proposal, node: Int[Tensor, "B"], where: Bool[Tensor, "B"], ids: Int[Tensor, "B W"], like: Tensor
) -> Float[Tensor, "B W"]:
    """q at these tokens, and what it has elsewhere in the last column."""
    if proposal.q is None:
        return torch.zeros_like(like)
    rows = torch.where(where, proposal.rows().gather(1, node[:, None])[:, 0], -1)
    q, total = _read(proposal.q, rows, ids, vocab=int(ids[0, -1]) if len(ids) else 0)
    q[:, -1] = (total - q.sum(-1)).clamp_min(0.0)
    return q


def _read(laws: Laws, rows: Int[Tensor, "B"], ids: Int[Tensor, "B W"], vocab: int) -> tuple[Tensor, Tensor]:
    """Probabilities of some tokens, and the sum of all; zeros for row -1 and for empty columns."""
    there = (rows >= 0)[:, None] & (ids < vocab)
    if laws.ids is None:
        total = laws.prob[rows.clamp_min(0)].sum(-1, dtype=torch.float64)
        found = laws.prob[rows.clamp_min(0)[:, None], ids.clamp_max(vocab - 1)]
    else:
        whole = laws.dense(rows, vocab)
        total, found = whole.sum(-1, dtype=torch.float64), whole.gather(1, ids.clamp_max(vocab - 1))
    return torch.where(there, found.double(), 0.0), torch.where(rows >= 0, total, 0.0)
