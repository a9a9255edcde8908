"""Nodes are set where each row wants them, and nothing else moves."""

import torch

from draftwood.core.tree import TokenTree
from draftwood.trees.place import place


def test_rows_fill_their_own_next_columns() -> None:
    tree = TokenTree.roots(torch.tensor([7, 8, 9]))
    one = torch.tensor
    at, live = one([[1, 2], [1, 2], [1, 2]]), one([[True, True], [True, False], [False, False]])
    score = torch.tensor([[0.0, -1.0]] * 3, dtype=torch.float64)
    tree = place(tree, at, live, parents=one([[0, 0]] * 3), tokens=one([[1, 2]] * 3), score=score)
    assert tree.tokens.tolist() == [[7, 1, 2], [8, 1, 0], [9, 0, 0]]
    assert tree.live.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    assert tree.copies.tolist() == [[0, 1, 1], [0, 1, 0], [0, 0, 0]]
    more = place(tree, one([[3], [2], [1]]), one([[False], [True], [True]]), parents=one([[1], [1], [0]]),
                 tokens=one([[5], [5], [5]]), score=score[:, 1:] - 1)  # fmt: skip
    assert more.num_nodes == 3 and more.tokens.tolist() == [[7, 1, 2], [8, 1, 5], [9, 5, 0]]
    assert more.score.tolist() == [[0, 0, -1], [0, 0, -2], [0, -2, 0]] and more.score.dtype == torch.float32
    assert more.parents.tolist()[1:] == [[-1, 0, 1], [-1, 0, 0]]


def test_nothing_drawn_changes_nothing() -> None:
    tree = TokenTree.roots(torch.tensor([7]))
    none = torch.zeros(1, 2, dtype=torch.int64)
    same = place(tree, none, none.bool(), parents=none, tokens=none + 3, score=none.double())
    assert same.tokens.tolist() == [[7]] and same.live.tolist() == [[True]]
