"""Which draw comes next: each of those left equally likely, the same for a row alone and in a batch."""

import pytest
import torch

from draftwood.core import noise
from draftwood.core.proposal import Draw
from draftwood.testing.contracts import toy_round
from draftwood.testing.tables import TableModel, near, random_law
from draftwood.trees.static import Static
from draftwood.verifiers.draws import next_draw, of, taken
from draftwood.verifiers.rejection import Rejection
from token_rules import recipe_of, texts, texts_alone

ASKED = [([1, 2], 12, 1.0), ([3], 1, 1.0), ([4], 3, 0.7), ([5, 0, 1], 9, 0.0), ([2], 20, 1.3)]


def test_a_draw_less_is_one_copy_less() -> None:
    assert taken(torch.tensor([[0, 2, 0], [1, 1, 0]]), torch.tensor([1, 0])).tolist() == [[0, 1, 0], [0, 1, 0]]
    assert of(torch.tensor([[4, 5], [6, 7]]), torch.tensor([1, 0])).tolist() == [5, 6]


def test_every_draw_left_is_equally_likely() -> None:
    rows = 4000
    rnd = toy_round([[1]] * rows, 9)
    left = torch.tensor([[0, 3, 0, 1]]).expand(rows, -1)
    node, yes = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)
    assert (next_draw(left, ~yes, rnd, node, 0) == 1).all(), "in draw order unless asked otherwise"
    found = next_draw(left, yes, rnd, node, 0).bincount(minlength=4) / rows
    assert found.tolist() == pytest.approx([0, 0.75, 0, 0.25], abs=0.03)


def sampled(together: bool) -> list[list[int]]:
    """Families of more than eight and of fewer: three steps would divide them differently."""
    law = random_law(14, 3)
    made = recipe_of(Rejection(), Static((12,), Draw.IID), near(law, 14, 4, 0.4), 1, 12)
    return (texts if together else texts_alone)(TableModel(14, law), made, ASKED)


def test_order_of_merged_draws_does_not_depend_on_the_batch() -> None:
    assert sampled(together=True) == sampled(together=False)


def test_control_a_pick_that_feels_empty_columns_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_NARROW", 0)
    assert sampled(together=True) != sampled(together=False)
