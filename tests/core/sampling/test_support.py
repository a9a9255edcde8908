"""Distributions over few tokens: the same distributions as over all, whatever stands beside them."""

import pytest
import torch
from torch import Tensor

from draftwood.core.sampling.params import SamplingParams
from draftwood.core.sampling.shaping import Shaping, _top_p
from draftwood.core.sampling.support import Few, Support, likeliest


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
    broken = _top_p(torch.full((1, 1, 8), torch.nan), torch.tensor([0.3], dtype=torch.float64))
    assert broken.isnan().all(), "what is no distribution stays visible"


@pytest.mark.parametrize(
    "options", [{"top_p": 0.8}, {"top_k": 5}, {"min_p": 0.2}, {"top_p": 0.8, "temperature": 0.6}, {"temperature": 0.0}]
)
def test_support_and_distribution_say_the_same(options: dict[str, float]) -> None:
    shaping = Shaping([SamplingParams(**{"temperature": 1.0, **options}), SamplingParams()], "cpu")  # type: ignore[arg-type]
    x = torch.randn(2, 500, generator=torch.Generator().manual_seed(1)) * 3
    found = shaping.support(x)
    assert shaping.few and found is not None
    assert torch.equal(found.dense(), shaping.probs(x[:, None])[:, 0])


def test_rows_of_two_widths_can_be_put_together() -> None:
    narrow = Support(torch.tensor([[1.0], [1.0]]), torch.tensor([[3], [4]]), 6)
    wide = Support(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), torch.tensor([[0, 1], [0, 5]]), 6)
    whole = Support(torch.eye(6)[:2], None, 6)
    where = torch.tensor([True, False])
    assert narrow.put(wide, where).dense().tolist() == [[0.5, 0.5, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0]]
    assert wide.put(narrow, where).dense().tolist() == [[0, 0, 0, 1, 0, 0], [0.5, 0, 0, 0, 0, 0.5]]
    assert whole.put(narrow, where).dense().tolist() == [[0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0]]


def test_distributions_one_behind_the_other_can_be_taken_and_spread() -> None:
    few = Few(
        torch.tensor([1.0, 0.5, 0.5, 0.2, 0.3, 0.5]), torch.tensor([4, 0, 3, 1, 2, 5]), torch.tensor([1, 2, 3]), 6
    )
    dense = few.dense()
    assert dense.tolist()[1] == [0.5, 0, 0, 0.5, 0, 0] and few.row().tolist() == [0, 1, 1, 2, 2, 2]
    assert torch.equal(few.table().dense(), dense)
    assert torch.equal(few.take(torch.tensor([2, 0, 2])).dense(), dense[[2, 0, 2]])
    assert few.among(torch.tensor([0, 2, 3]), 5).dense().sum(1).tolist() == [1, 0, 1, 1, 0]
    none = few.take(torch.zeros(0, dtype=torch.int64))
    empty = none.among(torch.zeros(0, dtype=torch.int64), 1).table()
    assert empty.ids is not None and empty.ids.tolist() == [[6]], "an empty row is an empty column"
