"""Rejection: keep a drawn token with probability min(1, r/q), otherwise go on with the residual norm((r - q)+).

One drawn child gives the rule of speculative sampling. Several are tried one after another against a shrinking residual:
without replacement in draw order, a rejected token leaving q; iid copies in uniformly random order. Each step keeps
min(r, q) and hands (r - q)+ on, so what comes out has distribution p.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core import host
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round, some
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED
from draftwood.core.verdict import Verdict
from draftwood.verifiers.family import Family
from draftwood.verifiers.formulas.draws import most_draws, of, order, ratio
from draftwood.verifiers.node_probs import node_probs
from draftwood.verifiers.walk import device_walk, follow, walk


@dataclass(frozen=True, slots=True)
class Rejection:
    """Exact for draws with a distribution; acceptance of one drawn child is 1 - TV(p, q)."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Rejection"].draws
    shapes: frozenset[Shape] = RULES["Rejection"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        if not host.on_host(rnd.device):
            if target.simple:  # of one-hot distributions rejection leaves the best token
                return follow(proposal, target.best())
            most = most_draws(proposal)
            return device_walk(
                proposal, target, lambda nodes, _, where: try_children_at(proposal, target, rnd, nodes, where, most)
            )
        return walk(proposal.tree, lambda here, _, alive: try_children(proposal, target, rnd, here, alive))


def try_children(
    proposal: Proposal, target: Scored, rnd: Round, here: Family, alive: Bool[Tensor, "B"]
) -> Int[Tensor, "B"]:
    """The token after each node, in the sequences where it is asked: a drawn child's, or one from what the others left."""
    both = node_probs(proposal, target, here, alive)
    token, count = torch.full_like(here.node, -1), here.copies.sum(1)
    trying = alive & (count > 0)
    r, q = both.p, both.q
    for turn, place in enumerate(order(here.copies, rnd, here.node, alive).unbind(1)):
        if not bool(trying.any()):
            break
        drawn = both.columns.gather(1, place[:, None])
        chance = ratio(*(x.prob.gather(1, drawn)[:, 0] for x in (r, q)))
        keep = rnd.coin("accept", of(here.child, place), chance, trying, turn)
        token = torch.where(keep, of(here.token, place), token)
        trying = trying & ~keep
        if some(trying):
            r = r.put(r.residual(q), trying)
            if proposal.draw is Draw.DISTINCT:
                q = q.put(q.without(drawn), trying)
        trying = trying & (count > turn + 1)
    rest = rnd.pick("residual", here.node, r, alive & (token < 0))
    return torch.where(token < 0, rest, token)


def try_children_at(
    proposal: Proposal, target: Scored, rnd: Round, nodes: Int[Tensor, "B K"], where: Bool[Tensor, "B K"], most: int
) -> Int[Tensor, "B K"]:
    """The same after many nodes at once, without a host read; -1 where no token is asked for. `most`: draws that a node can
    have.

    What is left of p after so many rejections depends on the draws alone, not on the coins. So all turns are prepared first,
    and then all coins are tossed together; the first that comes up counts.
    """
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
