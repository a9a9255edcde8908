"""What truncation leaves is what a sort would find, whatever else is in the batch."""

import pytest
import torch
from torch import Tensor

from draftwood.core.sampling.truncation import likeliest, top, top_p


def distributions(rows: int, vocab_size: int = 3000) -> Tensor:
    noise = torch.Generator().manual_seed(rows)
    temperature = torch.linspace(0.5, 6.0, rows)[:, None]
    return (temperature * torch.randn(rows, vocab_size, generator=noise)).softmax(-1)


def by_sorting(prob: Tensor, goal: float) -> Tensor:
    """Top-p as it is written in books."""
    best = prob.sort(descending=True).values
    floor = best[int((best.cumsum(0, dtype=torch.float64) < goal).sum().clamp_max(len(best) - 1))]
    kept = torch.where(prob >= floor, prob, 0)
    return kept / kept.sum()


@pytest.mark.parametrize("goal", [0.05, 0.5, 0.95, 0.999])
def test_the_likeliest_tokens_are_those_that_a_sort_finds(goal: float) -> None:
    prob = distributions(7)
    found = likeliest(prob, torch.full((7,), goal, dtype=torch.float64))
    assert found is not None
    for row, whole in zip(found.dense(), prob, strict=True):
        torch.testing.assert_close(row, by_sorting(whole, goal))
        assert ((row > 0) == (by_sorting(whole, goal) > 0)).all()
    ids = found.table().ids
    assert ids is not None and (ids.diff(dim=1) >= 0).all(), "tokens rise, empty columns stand last"


def test_a_row_does_not_depend_on_its_neighbours_to_the_last_bit() -> None:
    prob, goal = distributions(6), torch.tensor([0.9, 0.3, 1.0, 0.99, 0.5, 0.95], dtype=torch.float64)
    together = likeliest(prob, goal)
    assert together is not None
    for i, row in enumerate(together.dense()):
        alone = likeliest(prob[i : i + 1], goal[i : i + 1])
        assert alone is not None and torch.equal(alone.dense()[0], row)


def test_ties_stay_together_and_rows_that_are_no_distribution_are_nobodys() -> None:
    even = torch.full((1, 8), 0.125)
    found = likeliest(even, torch.tensor([0.3], dtype=torch.float64))
    assert found is not None and found.table().prob.shape == (1, 8)
    assert likeliest(torch.full((1, 8), torch.nan), torch.tensor([0.3], dtype=torch.float64)) is None
    broken = top_p(torch.full((1, 1, 8), torch.nan), torch.tensor([0.3], dtype=torch.float64))
    assert broken.isnan().all(), "what is no distribution stays visible"


def test_the_greatest_of_a_row_are_found_by_groups_as_by_searching_it_whole() -> None:
    for width, k in ((5, 5), (2048, 3), (8192, 10), (8195, 10), (49152, 10)):
        noise = torch.Generator().manual_seed(width)
        prob = torch.softmax(3 * torch.randn(2, 3, width, generator=noise), dim=-1)
        prob[0, 0] = 0.0  # nothing but ties
        value, column = top(prob, k)
        assert torch.equal(value, prob.topk(k).values) and torch.equal(prob.gather(-1, column), value)
        assert all(len(set(row)) == k for row in column.flatten(0, 1).tolist())
