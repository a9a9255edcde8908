"""Distributions and numbers follow their nodes through every change of a proposal."""

import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal
from draftwood.testing.contracts import toy_round
from draftwood.testing.table_drafter import TableDrafter
from draftwood.testing.table_model import random_probs
from draftwood.trees.static import Static


def drawn() -> Proposal:
    rnd = toy_round([[1], [2, 3]], 5)
    return TableDrafter(random_probs(5, 1)).propose(
        None, rnd, Proposal.roots(rnd.roots()), Limit.of([2, 2], [6, 6]), Static((2, 2))
    )


def test_compacting_keeps_each_nodes_distribution() -> None:
    proposal = drawn()
    kept = proposal.keep(torch.tensor([[1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1, 0]], dtype=torch.bool))
    small = kept.compact(int(kept.tree.live.sum(1).max()))
    assert proposal.q is not None
    for row in range(2):
        for node in range(small.tree.num_nodes):
            if not small.tree.live[row, node]:
                continue
            same = (proposal.tree.tokens[row] == small.tree.tokens[row, node]) & kept.tree.live[row]
            rows = {int(r) for r in proposal.q_indices()[row][same]}
            assert int(small.q_indices()[row, node]) in rows
