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
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.verifiers.device_rejection import try_children_at
from draftwood.verifiers.device_walk import device_walk, follow_best
from draftwood.verifiers.draws import most_draws, of, order, ratio
from draftwood.verifiers.family import Family
from draftwood.verifiers.node_probs import node_probs
from draftwood.verifiers.walk import walk


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
                return follow_best(proposal, target)
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
