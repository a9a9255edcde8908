"""Rules that are wrong on purpose, for checks that must find them."""

from dataclasses import dataclass

import torch

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import RULES, Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Everything:
    """Keeps the first child of every node, whatever the target says."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Traversal"].draws
    shapes: frozenset[Shape] = RULES["Traversal"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        path = [node := torch.zeros_like(proposal.tree.tokens[:, 0])]
        while bool((below := proposal.tree.children(node)).any()):
            path.append(node := below.int().argmax(1))
        nodes = torch.stack(path, dim=1)
        after = target.best().gather(1, node[:, None])[:, 0]
        return Verdict(nodes, (nodes >= 0).sum(1) - 1, after)
