"""LongestRun: of several beginnings that the target proposed, the one whose draft gets furthest. LOSSY.

Every drafted node is kept on its own with probability min(1, p/q); of the target's own below the root the one with the
longest run of kept nodes below it wins, the first among equals. That looks at what comes after a token to decide about the
token: two beginnings with p = (.7, .3), whose next tokens are kept with .4 and .9, come out as (.334, .666).

The round ends in a node that the target has scored, so that the next one can begin with its logits: the path is handed over
less its last node, whose token is the one after it. Sequences without such beginnings are judged by rejection, one token
after another.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round, some
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict
from draftwood.verifiers.formulas.draws import ratio
from draftwood.verifiers.onward import verdict_at
from draftwood.verifiers.rejection import try_children
from draftwood.verifiers.walk import walk


@dataclass(frozen=True, slots=True)
class LongestRun:
    """Not exact. Defined for beginnings that are given, each with one chain of draws below it."""

    needs: Needs = Needs()
    lossless: bool = False
    draws: frozenset[Draw] = frozenset({Draw.DISTINCT})
    shapes: frozenset[Shape] = frozenset({Shape.CHAIN, Shape.TREE})

    def verify(self, proposal: Proposal, target: Scored, rnd: Round) -> Verdict:
        tree = proposal.tree
        begins = tree.children(torch.zeros_like(tree.tokens[:, 0])) & (tree.source < 0)
        begun = begins.any(1)

        # Where the first tokens are drawn, the last accepted one is the end, or the token that took its place.
        first = walk(tree, lambda here, _, alive: try_children(proposal, target, rnd, here, alive & ~begun))
        end = first.path.gather(1, first.count[:, None])[:, 0]
        end = torch.where(begun, _furthest(proposal, target, rnd, begins), end)
        token = torch.where(end > 0, tree.tokens.gather(1, end[:, None])[:, 0], first.next_token)
        return verdict_at(target.host_tree, tree.parents.gather(1, end[:, None])[:, 0].clamp_min(0), token)


def _furthest(proposal: Proposal, target: Scored, rnd: Round, begins: Bool[Tensor, "B N"]) -> Int[Tensor, "B"]:
    """The deepest kept node below the given beginnings. Levels stand one behind the other and their nodes in the order of
    the beginnings, so of equally deep ones the first belongs to the first beginning."""
    tree, kept = proposal.tree, begins.clone()
    for n in range(1, tree.num_nodes):
        parent = tree.parents[:, n].clamp_min(0)
        tried = tree.live[:, n] & ~begins[:, n] & kept.gather(1, parent[:, None])[:, 0]
        if some(tried):
            token, index = tree.tokens[:, n], proposal.q_indices().gather(1, parent[:, None])[:, 0]
            p = target.probs(parent, where=tried).at(token)
            q = (
                torch.zeros_like(p)
                if proposal.q is None
                else proposal.q.at(index, token, target.vocab_size).to(p.dtype)
            )
            # A greedy sequence's tokens are taken, not drawn: kept if the target wants them.
            chance = torch.where(tree.copies[:, n] > 0, ratio(p, q), p)
            kept[:, n] |= rnd.coin("accept", torch.full_like(parent, n), chance, tried)
    return (tree.depths() * kept).argmax(1)
