"""Distributions and numbers follow their nodes through every change of a proposal."""

import torch

from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal, Started
from draftwood.core.tree import TokenTree
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


def test_what_is_started_follows_its_nodes_and_keeps_its_entries() -> None:
    tree = TokenTree.roots(torch.tensor([5, 6]))
    first = torch.tensor([[0, 0], [0, 0]])
    tree = tree.add(first, torch.tensor([[1, 2], [4, 5]]), live=torch.ones(2, 2).bool())
    tree = tree.add(torch.tensor([[2], [1]]), torch.tensor([[3], [6]]), live=torch.ones(2, 1).bool())
    hidden = torch.arange(8.0).view(2, 4, 1)
    proposal = Proposal(tree, started=Started(3, hidden))
    cut = proposal.keep(torch.tensor([[True, False, True, True], [True, True, False, True]])).compact(3)
    assert cut.started is not None and cut.started.layers == 3
    assert cut.started.entries is not None
    assert cut.started.entries.tolist() == [[0, 2, 3], [0, 1, 3]]
    assert cut.started.hidden[..., 0].tolist() == [[0, 2, 3], [4, 5, 7]]
    again = cut.keep(torch.tensor([[True, True, False], [True, True, True]])).compact(3).take(torch.tensor([1, 0]))
    assert again.started is not None and again.started.entries is not None
    assert again.started.entries[0].tolist() == [0, 1, 3] and again.started.entries[1, :2].tolist() == [0, 2]
    among = again.started.among([0, 2], 3)
    assert among.sequences == (True, False, True)
    assert among.hidden[[0, 2]].equal(again.started.hidden)
    assert among.hides(frozenset({2})) and not among.hides(frozenset({3, -1}))
