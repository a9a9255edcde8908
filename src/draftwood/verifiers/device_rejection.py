"""The rule of `rejection.py` at many nodes at once, without a look at any number.

What is left of p after so many rejections depends on the draws alone, not on the coins. So all turns are prepared first, as
many as any node can have draws, and then all coins are asked together; the first that comes up counts.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED
from draftwood.verifiers.draws import order, ratio


def try_children_at(
    proposal: Proposal, target: Scored, rnd: Round, nodes: Int[Tensor, "B K"], where: Bool[Tensor, "B K"], most: int
) -> Int[Tensor, "B K"]:
    """The token after each node where it is asked: a drawn child's, or one from what the others left; -1 elsewhere. `most`:
    draws that a node can have."""
    tree, vocab_size = proposal.tree, target.vocab_size
    p = target.dense(nodes, where)  # [B, K, V]
    if proposal.q is None or not proposal.q.num_distributions or not most:  # nothing was drawn
        return rnd.pick("residual", nodes, p, where)
    drawn = torch.where(tree.live & (tree.role == SCORED), tree.copies, 0)
    copies = torch.where(tree.parents[:, None] == nodes[..., None], drawn[:, None], 0)  # [B, K, N]
    count, turn = copies.sum(-1, keepdim=True), torch.arange(most, device=nodes.device)
    child = order(copies, rnd, nodes, where, most, merges=proposal.draw is Draw.IID)  # [B, K, n]
    token = tree.tokens.gather(1, child.flatten(1)).view_as(child)
    r = TokenProbs(p.view(-1, vocab_size), vocab_size)
    q = proposal.q.over(r, proposal.q_indices().gather(1, nodes).flatten())
    chances, trying = list[Tensor](), (count > turn).view(-1, most)
    for t, column in enumerate(token.clamp(0, vocab_size - 1).view(-1, most).split(1, dim=1)):
        chances.append(ratio(*(x.prob.gather(1, column) for x in (r, q))))
        r = r.put(r.residual(q), trying[:, t])
        if proposal.draw is Draw.DISTINCT and t + 1 < most:
            q = q.without(column)
    chance, asked = torch.cat(chances, dim=1).view_as(child), (count > turn) & where[..., None]
    kept, first = rnd.coin("accept", child, chance, asked, turn).int().max(-1, keepdim=True)
    rest = rnd.pick("residual", nodes, r.prob.view_as(p), where & (kept[..., 0] == 0))
    return torch.where(kept[..., 0] > 0, token.gather(-1, first)[..., 0], rest)
