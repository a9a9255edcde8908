"""Match: sample the target, follow it while the tree holds its token.

The emitted tokens are plain target samples, keyed by (seed, position); the draft only decides how many of them one pass
yields. Exact for every draft, and with the same seed equal to plain decoding token for token.
"""

from dataclasses import dataclass

import torch

from draftwood.core import host
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import HostVerdict, Verdict
from draftwood.verifiers.walk import device_walk, follow, walk_nodes


@dataclass(frozen=True, slots=True)
class Match:
    """Acceptance at a node with child set S is the target's mass on S."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Match"].draws
    shapes: frozenset[Shape] = RULES["Match"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        if not host.on_host(rnd.device):
            return follow(proposal, target.best()) if target.simple else device_walk(proposal, target, target.tokens)
        if target.simple:  # nothing to draw: the path is looked up
            return target.host_tree.follow(host.host(target.best()), rnd.device)
        if proposal.tree.num_nodes == 1:  # plain decoding: one token of each sequence, and nothing to walk
            root = torch.zeros_like(proposal.tree.tokens[:, 0])
            token = target.token(root, 0)
            return Verdict(root[:, None], root, token, HostVerdict([[0]] * len(root), host.host(token)))
        return walk_nodes(proposal.tree, proposal.tree.num_nodes - 1, target.token, reads=True)
