"""In which order draws come: every one equally likely where some were merged, the same for a row alone and in a batch."""

from collections import Counter
from itertools import permutations

import pytest
import torch

from draftwood.core import noise
from draftwood.testing.contracts import toy_round
from draftwood.testing.tables import TableModel, near, random_law
from draftwood.trees.paths import Paths
from draftwood.verifiers.draws import of, order
from draftwood.verifiers.rejection import Rejection
from token_rules import recipe_of, texts, texts_alone

ASKED = [([1, 2], 12, 1.0), ([3], 1, 1.0), ([4], 3, 0.7), ([5, 0, 1], 9, 0.0), ([2], 20, 1.3)]


def test_of_says_one_child_per_row() -> None:
    assert of(torch.tensor([[4, 5], [6, 7]]), torch.tensor([1, 0])).tolist() == [5, 6]


def test_draws_that_were_not_merged_come_in_draw_order() -> None:
    copies = torch.tensor([[1, 0, 1, 1], [0, 3, 0, 0], [0, 0, 0, 0]])
    rnd, node = toy_round([[1]] * 3, 9), torch.zeros(3, dtype=torch.int64)
    found = order(copies, rnd, node, torch.ones(3, dtype=torch.bool))
    assert found.shape == (3, 3) and found[:2].tolist() == [[0, 2, 3], [1, 1, 1]]
    assert order(copies[2:], rnd.take([2]), node[2:], torch.ones(1, dtype=torch.bool)).shape == (1, 0)


def test_every_order_of_merged_draws_is_equally_likely() -> None:
    rows = 6000
    rnd, copies = toy_round([[1]] * rows, 9), torch.tensor([[0, 2, 0, 1, 1]]).expand(rows, -1)
    node, yes = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)
    assert order(copies, rnd, node, ~yes)[:, 0].eq(1).all(), "in draw order where nobody asks"
    found = Counter(map(tuple, order(copies, rnd, node, yes).tolist()))
    assert set(found) == set(permutations((1, 1, 3, 4)))
    assert all(seen / rows == pytest.approx(1 / 12, abs=0.015) for seen in found.values())


def sampled(together: bool) -> list[list[int]]:
    """Families of more than eight draws and of fewer: three steps would divide them differently."""
    law = random_law(6, 3)
    made = recipe_of(Rejection(), Paths(24), near(law, 6, 4, 0.4), 2, 64)
    return (texts if together else texts_alone)(TableModel(6, law), made, ASKED)


def test_order_of_merged_draws_does_not_depend_on_the_batch() -> None:
    assert sampled(together=True) == sampled(together=False)


def test_control_a_pick_that_feels_empty_columns_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_NARROW", 0)
    assert sampled(together=True) != sampled(together=False)
