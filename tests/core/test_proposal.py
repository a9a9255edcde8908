"""Distributions and numbers follow their nodes through every change of a proposal."""

from dataclasses import replace

import pytest
import torch

from draftwood.core.draw import Draw
from draftwood.core.limit import Limit
from draftwood.core.proposal import Proposal, Started
from draftwood.core.tree import AHEAD, TokenTree
from draftwood.testing.contracts import toy_round
from draftwood.testing.table_drafter import TableDrafter
from draftwood.testing.table_model import random_probs
from draftwood.trees.static import Static


def drawn() -> Proposal:
    rnd = toy_round([[1], [2, 3]], 5)
    return TableDrafter(random_probs(5, 1)).propose(
        None, rnd, Proposal.roots(rnd.roots()), Limit.of([2, 2], [6, 6]), Static((2, 2))
    )


def given(rows: list[list[tuple[int, int]]], roots: list[int]) -> Proposal:
    """Given trees from (parent, token) pairs."""
    tree = TokenTree.roots(torch.tensor(roots))
    for i in range(max(len(r) for r in rows)):
        pair = [r[i] if i < len(r) else (0, -1) for r in rows]
        tree = tree.add(
            torch.tensor([[p] for p, _ in pair]),
            torch.tensor([[t] for _, t in pair]),
            live=torch.tensor([[t >= 0] for _, t in pair]),
            copies=0,
        )
    return Proposal(tree, q_index=torch.full_like(tree.tokens, -1))


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


def test_layers_that_were_run_already_follow_their_nodes() -> None:
    """The hidden state of a node is its token here, its staged row that and ten."""
    proposal = given([[(0, 5), (0, 6), (2, 7)], [(0, 8), (1, 9)]], [1, 2])
    tokens = proposal.tree.tokens
    proposal = replace(proposal, started=Started(2, tokens[..., None].expand(-1, -1, 3).double(), tokens + 10))
    kept = proposal.keep(torch.tensor([[True, False, True, True], [True, True, True, False]]))
    for small in (kept.compact(3), kept.compact(3).take(torch.tensor([0, 1])).to("cpu")):
        assert small.started is not None and small.started.layers == 2
        assert small.tree.tokens.tolist() == [[1, 6, 7], [2, 8, 9]]
        assert small.started.hidden.tolist() == [[[t] * 3 for t in row] for row in small.tree.tokens.tolist()]
        assert small.started.entries.tolist() == [[11, 16, 17], [12, 18, 19]]


def test_given_nodes_are_grafted_by_their_longest_shared_prefix() -> None:
    ours = given([[(0, 5), (1, 6)], [(0, 7)]], [1, 2])
    theirs = given([[(0, 5), (1, 8), (2, 9)], [(0, 7), (1, 3)]], [1, 2])
    merged = ours.merge(theirs)
    nodes = torch.arange(merged.tree.num_nodes).expand(2, -1)
    paths = [
        {tuple(t for t in p if t >= 0) for p, live in zip(row, alive, strict=True) if live}
        for row, alive in zip(merged.tree.path_tokens(nodes).tolist(), merged.tree.live.tolist(), strict=True)
    ]
    assert paths == [{(), (5,), (5, 6), (5, 8), (5, 8, 9)}, {(), (7,), (7, 3)}]


def test_a_drawn_tree_cannot_be_grafted_onto_another() -> None:
    with pytest.raises(ValueError, match="given"):
        drawn().merge(drawn())


def test_rerooting_keeps_the_subtree_and_scores_it() -> None:
    proposal = given([[(0, 5), (0, 6), (1, 7), (3, 8)], [(0, 5)]], [1, 2])
    ahead = Proposal(
        TokenTree(**{n: getattr(proposal.tree, n) for n in proposal.tree.__slots__ if n != "role"},
                  role=torch.full_like(proposal.tree.role, AHEAD)), Draw.GIVEN, q_index=proposal.q_index
    )  # fmt: skip
    moved = ahead.reroot(torch.tensor([1, -1]), 3)
    assert moved.tree.tokens[0].tolist() == [5, 7, 8] and moved.tree.parents[0].tolist() == [-1, 0, 1]
    assert (moved.tree.role == 0).all()
    assert not moved.tree.live[1].any(), "nothing to carry over for a row whose token was not drafted"
