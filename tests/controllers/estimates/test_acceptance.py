"""Measured acceptance answers for every size, and moves as a whole with what is seen."""

import numpy as np
import pytest

from draftwood.controllers.estimates.acceptance import NODES, Acceptance, Outlook, Table
from draftwood.errors import WeightsError


def table(first: float) -> Table:
    chains = tuple(float(sum(first**k for k in range(1, d + 1))) for d in range(1, 5))
    trees = tuple(tuple(chains[d] * (1 + 0.1 * i) for i in range(len(NODES))) for d in range(4))
    return Table(chains, trees)


ACCEPTANCE = Acceptance(table(0.6), table(0.4))


def test_a_table_gives_what_was_measured_and_interpolates() -> None:
    found = table(0.5)
    assert found.accepted((2, 2)) == pytest.approx(0.75) and found.accepted((4, 8)) == pytest.approx(0.9375 * 1.4)
    assert found.accepted((4, 7)) == pytest.approx(0.9375 * 1.35)
    assert found.accepted((9, 60)) == found.accepted((4, 60)), "beyond what was measured: as the largest"


def test_expected_tokens_are_those_of_the_table_without_a_shift() -> None:
    sizes = [(1, 1), (3, 3), (3, 8), (4, 60)]
    outlook = Outlook.of(ACCEPTANCE, sizes)
    assert outlook.accepted(0.0, 0.0) == pytest.approx([ACCEPTANCE.greedy.accepted(s) for s in sizes], rel=1e-3)
    assert outlook.accepted(1.0, 0.0) == pytest.approx([ACCEPTANCE.sampled.accepted(s) for s in sizes], rel=1e-3)


def test_a_shift_moves_all_sizes_and_none_beyond_its_depth() -> None:
    sizes = [(1, 1), (4, 4), (4, 60)]
    outlook = Outlook.of(ACCEPTANCE, sizes)
    low, level, high = (outlook.accepted(0.5, shift) for shift in (-1.0, 0.0, 1.0))
    assert (low < level).all() and (level < high).all()
    assert (outlook.accepted(0.0, 4.0) < np.array([1, 4, 4])).all() and (outlook.accepted(0.0, -4.0) > 0).all()


def test_a_profile_that_is_not_whole_is_refused() -> None:
    with pytest.raises(WeightsError, match="not whole"):
        Acceptance.of({"temperatures": {"0": {"chains": [0.5]}}})
