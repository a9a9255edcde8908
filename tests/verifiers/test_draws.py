"""Which draw comes next: each of those left equally likely, the same for a row alone and in a batch."""

import pytest
import torch

from draftwood.core.proposal import Draw, Proposal
from draftwood.core.round import Round
from draftwood.core.tree import TokenTree
from draftwood.testing.contracts import toy_round
from draftwood.testing.tables import TableModel, near, random_law
from draftwood.trees.paths import Paths
from draftwood.verifiers import draws, rejection
from draftwood.verifiers.draws import next_draw, taken, untried
from draftwood.verifiers.rejection import Rejection
from token_rules import recipe_of, texts, texts_alone

ASKED = [([1, 2], 12, 1.0), ([3], 1, 1.0), ([4], 3, 0.7), ([5, 0, 1], 9, 0.0), ([2], 20, 1.3)]


def test_draws_of_a_node_are_its_drawn_childrens_copies() -> None:
    tree = TokenTree.roots(torch.tensor([1]))
    for parent, token, copies in ((0, 5, 2), (0, 6, 0), (1, 7, 1)):
        at = torch.tensor([[parent]])
        tree = tree.add(at, torch.tensor([[token]]), live=torch.ones(1, 1).bool(), copies=copies)
    left = untried(Proposal(tree, Draw.IID), torch.tensor([0]))
    assert left.tolist() == [[0, 2, 0, 0]]
    assert taken(left, torch.tensor([1])).tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("most", [27, 1])
def test_every_draw_left_is_equally_likely(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_COLUMNS", most)
    rows = 4000
    rnd = toy_round([[1]] * rows, 9)
    left = torch.tensor([[0, 3, 0, 1]]).expand(rows, -1)
    node, yes = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)
    assert (next_draw(left, ~yes, rnd, node, 0) == 1).all(), "in draw order unless asked otherwise"
    found = next_draw(left, yes, rnd, node, 0).bincount(minlength=4) / rows
    assert found.tolist() == pytest.approx([0, 0.75, 0, 0.25], abs=0.03)


def sampled(together: bool) -> list[list[int]]:
    law = random_law(6, 3)
    made = recipe_of(Rejection(), Paths(3), near(law, 6, 4, 0.4), 3, 9)
    return (texts if together else texts_alone)(TableModel(6, law), made, ASKED)


def test_order_of_merged_draws_does_not_depend_on_the_batch() -> None:
    assert sampled(together=True) == sampled(together=False)


def test_control_an_order_picked_over_the_trees_columns_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def over_the_tree(
        left: torch.Tensor, shuffle: torch.Tensor, rnd: Round, node: torch.Tensor, turn: int
    ) -> torch.Tensor:
        return torch.where(shuffle, rnd.pick("order", node, left.double(), shuffle, turn), (left > 0).int().argmax(1))

    monkeypatch.setattr(rejection, "next_draw", over_the_tree)
    assert sampled(together=True) != sampled(together=False)
