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


@dataclass(frozen=True, slots=True)
class FirstCopy:
    """Takes the first token of a given draft unseen."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = frozenset({Draw.GIVEN})
    shapes: frozenset[Shape] = frozenset({Shape.CHAIN})

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        below = proposal.tree.children(torch.zeros_like(proposal.tree.tokens[:, 0]))
        child = torch.where(below.any(1), below.int().argmax(1), -1)
        after = target.best().gather(1, child.clamp_min(0)[:, None])[:, 0]
        return Verdict(torch.stack([torch.zeros_like(child), child], dim=1), (child >= 0).long(), after)


@dataclass(frozen=True, slots=True)
class LongestOfPaths:
    """Compares each root-to-leaf path with draws of its own, keeps the longest match, and draws again after a miss: what a
    published retrieval method does above temperature 0. Of one level, one sequence after another."""

    needs: Needs = Needs()
    lossless: bool = True
    draws: frozenset[Draw] = RULES["Match"].draws
    shapes: frozenset[Shape] = RULES["Match"].shapes

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        tree, root = proposal.tree, torch.zeros_like(proposal.tree.tokens[:, 0])
        kept = root
        for leaf in range(tree.num_nodes - 1, 0, -1):  # of equal lengths the first path wins
            here = tree.live[:, leaf]
            drawn = rnd.pick("path", torch.full_like(root, leaf), target.probs(root), here)
            kept = torch.where(here & (drawn == tree.tokens[:, leaf]), leaf, kept)
        again = rnd.pick("bonus", kept, target.probs(kept), torch.ones_like(root, dtype=torch.bool))
        path = torch.where(kept > 0, kept, -1)
        return Verdict(torch.stack((root, path), dim=1), (path >= 0).long(), again)
