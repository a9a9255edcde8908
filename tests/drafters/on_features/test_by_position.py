"""Nodes of a depth share a distribution, one pass makes them all, and nodes that it does not cover get no children."""

from typing import Any

import torch
from torch import Tensor

from draftwood.core.tree import TokenTree
from draftwood.drafters.on_features.by_position import ByPosition
from draftwood.testing.contracts import toy_round

LOGITS = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))  # two places of each of two sequences


def draft(**more: Any) -> tuple[ByPosition, list[int]]:
    passes: list[int] = []

    def run() -> Tensor:
        passes.append(1)
        return LOGITS

    rnd = toy_round([[1, 2], [3], [4, 5]], 7, temperature=0.5)
    return ByPosition(rnd, [0, 2], 2, run, None, ranked=True, **more), passes


def tree() -> TokenTree:
    """root - a - b in each of three sequences."""
    found = TokenTree.roots(torch.tensor([2, 3, 5]))
    for parent in (0, 1):
        found = found.add(
            torch.full((3, 1), parent), torch.tensor([[1], [2], [3]]), live=torch.ones(3, 1).bool(), copies=0
        )
    return found


def test_the_distribution_of_a_node_is_that_of_its_depth() -> None:
    made, passes = draft()
    assert not made.ran
    for depth in (0, 1, 2):
        frontier = torch.tensor([[depth], [depth], [-1]])
        q, _ = made.step(tree(), frontier)
        right = (LOGITS[depth] / 0.5).softmax(-1) if depth < 2 else torch.zeros(7)
        torch.testing.assert_close(q.prob[0], right)
        assert not q.prob[1:].any(), "one sequence is not drafted, the other one has no node here"
    q, _ = made.step(tree(), torch.tensor([[-1, 0], [0, 1], [1, 0]]))
    torch.testing.assert_close(q.prob[[1, 4, 5]], (LOGITS[[0, 3, 2]] / 0.5).softmax(-1))
    assert made.ran and passes == [1] and made.seconds > 0


def test_the_best_tokens_alone_are_the_same() -> None:
    def rank(logits: Tensor, temperature: list[float]) -> tuple[Tensor, Tensor]:
        assert temperature == [0.5] * 4
        best = (logits / 0.5).softmax(-1).topk(3, dim=-1)
        return best.values, best.indices

    made, whole = draft(temperature=[0.5, 0.7, 0.5], rank=rank)[0], draft()[0]
    for frontier in ([[0, -1], [0, 0], [1, 2]], [[1, 0], [-1, -1], [0, 1]]):
        some, every = (each.step(tree(), torch.tensor(frontier))[0] for each in (made, whole))
        values, ids = every.prob.topk(3, dim=-1)
        torch.testing.assert_close(some.prob, values)
        assert some.ids is not None and torch.equal(some.ids[values[:, 0] > 0], ids[values[:, 0] > 0])
