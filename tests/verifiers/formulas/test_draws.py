"""In which order draws come: every one equally likely where some were merged, the same for a row alone and in a batch."""

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.testing.contracts import toy_round
from draftwood.verifiers.formulas import draws
from draftwood.verifiers.formulas.draws import most_draws, of, order, ratio


def test_of_says_one_child_per_row() -> None:
    assert of(torch.tensor([[4, 5], [6, 7]]), torch.tensor([1, 0])).tolist() == [5, 6]


def test_draws_that_were_not_merged_come_in_draw_order() -> None:
    copies = torch.tensor([[1, 0, 1, 1], [0, 3, 0, 0], [0, 0, 0, 0]])
    rnd, node = toy_round([[1]] * 3, 9), torch.zeros(3, dtype=torch.int64)
    found = order(copies, rnd, node, torch.ones(3, dtype=torch.bool))
    assert found.shape == (3, 3) and found[:2].tolist() == [[0, 2, 3], [1, 1, 1]]


def test_without_draws_there_is_no_order_and_an_accelerator_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "some", lambda mask: True)
    nothing, one = torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, dtype=torch.bool)
    assert order(nothing, toy_round([[1]], 9), torch.zeros(1, dtype=torch.int64), one).shape == (1, 0)


def test_a_bound_that_is_too_high_changes_no_order() -> None:
    copies = torch.tensor([[2, 0, 1, 1], [0, 3, 1, 0], [0, 0, 0, 0]])
    rnd, node = toy_round([[1]] * 3, 9), torch.tensor([0, 4, 0])
    yes = torch.ones(3, dtype=torch.bool)
    found, wide = order(copies, rnd, node, yes), order(copies, rnd, node, yes, 7)
    assert found.shape == (3, 4) and wide.shape == (3, 7) and torch.equal(wide[:2, :4], found[:2])


def test_draws_at_several_nodes_of_a_sequence_are_ordered_like_those_of_each() -> None:
    copies = torch.tensor([[[2, 0, 1, 1], [0, 3, 1, 0]], [[1, 1, 0, 0], [2, 2, 0, 0]]])
    rnd, node = toy_round([[1]] * 2, 9), torch.tensor([[0, 4], [2, 3]])
    yes = torch.ones(2, 2, dtype=torch.bool)
    together = order(copies, rnd, node, yes, 4)
    for k in range(2):
        assert torch.equal(together[:, k], order(copies[:, k], rnd, node[:, k], yes[:, k], 4))


def test_merged_draws_are_counted_where_no_bound_was_said() -> None:
    tree = TokenTree.roots(torch.tensor([0, 0]))
    yes = torch.ones(2, 1, dtype=torch.bool)
    for token, copies in ((3, 4), (5, 2), (6, 1)):
        tree = tree.add(torch.zeros(2, 1, dtype=torch.int64), torch.full((2, 1), token), live=yes, copies=copies)
    tree = tree.keep(torch.tensor([[True, True, True, True], [True, True, True, False]]))
    assert most_draws(Proposal(tree, Draw.IID)) == 7
    assert most_draws(Proposal(tree, Draw.IID, max_children=9)) == 9
    assert most_draws(Proposal(tree, Draw.DISTINCT)) == 3


def test_a_token_that_could_not_have_been_drawn_is_never_kept() -> None:
    assert ratio(torch.tensor([0.2, 0.4, 0.3]), torch.tensor([0.4, 0.2, 0.0])).tolist() == [0.5, 1.0, 0.0]


def test_every_order_of_merged_draws_is_equally_likely() -> None:
    rows = 6000
    rnd, copies = toy_round([[1]] * rows, 9), torch.tensor([[0, 2, 0, 1, 1]]).expand(rows, -1)
    node, yes = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)
    assert order(copies, rnd, node, ~yes)[:, 0].eq(1).all(), "in draw order where none is asked for"
    found = Counter(map(tuple, order(copies, rnd, node, yes).tolist()))
    assert set(found) == set(permutations((1, 1, 3, 4)))
    assert all(seen / rows == pytest.approx(1 / 12, abs=0.015) for seen in found.values())


def orders(together: bool) -> list[list[int]]:
    """Of families of seventy draws and fewer: three steps would divide them differently in another company."""
    copies = torch.tensor([[40, 0, 30], [2, 1, 1], [0, 5, 3], [1, 0, 68], [20, 21, 22]])
    rows = list(range(len(copies)))
    found: list[list[int]] = []
    for part in [rows] if together else [[b] for b in rows]:
        rnd, some = toy_round([[1]] * len(copies), 9).take(part), copies[part]
        told = order(some, rnd, torch.zeros(len(some), dtype=torch.int64), torch.ones(len(some), dtype=torch.bool))
        found += [row[:n] for row, n in zip(told.tolist(), some.sum(1).tolist(), strict=True)]
    return found


def test_order_of_merged_draws_does_not_depend_on_the_batch() -> None:
    assert orders(together=True) == orders(together=False)


def test_control_a_pick_that_feels_empty_columns_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of numbers that are not whole a pick from so many columns takes three steps."""
    real = Round.pick

    def three_steps(self: Round, purpose: str, at: Tensor, probs: Tensor, *more: Any) -> Tensor:
        return real(self, purpose, at, probs.double(), *more)

    monkeypatch.setattr(Round, "pick", three_steps)
    assert orders(together=True) != orders(together=False)
