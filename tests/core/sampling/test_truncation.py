"""What truncation leaves is what a sort would find, whatever else is in the batch."""

import pytest
import torch
from torch import Tensor

from draftwood.core.sampling.truncation import likeliest, top, top_k, top_p
from draftwood.testing.host_reads import HostReads, as_if_on_a_device


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


def test_ties_stay_together_and_rows_that_are_no_distribution_stay_nan() -> None:
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


def of_both(prob: Tensor, goals: Tensor) -> tuple[Tensor, Tensor]:
    """Top-p of [B, K, W] on a CPU, and on a device."""
    with as_if_on_a_device(), HostReads() as reads:
        found = top_p(prob, goals)
    assert reads.total == 0, reads.by_name
    return top_p(prob, goals), found


def test_a_device_keeps_the_same_tokens_without_a_look() -> None:
    goals = torch.tensor([0.9, 0.3, 1.0, 0.999, 0.5, 0.05], dtype=torch.float64)
    for width in (7, 300, 3000):  # wide and flat ones keep more than a search of the best few hundred would find
        want, found = of_both(distributions(12, width).view(6, 2, width), goals)
        assert ((want > 0) == (found > 0)).all()
        torch.testing.assert_close(found, want)


def test_a_device_keeps_ties_together() -> None:
    prob = torch.tensor([[0.25, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.0], [0.125] * 8])[:, None]
    for goal in (0.2, 0.3, 0.5, 0.99):
        want, found = of_both(prob, torch.full((2,), goal, dtype=torch.float64))
        assert ((want > 0) == (found > 0)).all()
        torch.testing.assert_close(found, want)


def test_a_device_shows_what_is_no_distribution() -> None:
    with as_if_on_a_device():
        broken = top_p(torch.full((1, 1, 8), torch.nan), torch.tensor([0.3], dtype=torch.float64))
    assert broken.isnan().all()


def test_a_device_keeps_the_greatest_without_a_look() -> None:
    x = distributions(6, 4100).log().view(3, 2, -1)
    want = top_k(x, [5, 0, 40])
    with as_if_on_a_device(), HostReads() as reads:
        found = top_k(x, [5, 0, 40])
    assert reads.total == 0 and torch.equal(found, want)
