"""The twin rounds as the kernels say they do."""

import torch

from draftwood.kernels.cpu.twin import product, rounded


def drawn(rows: int = 6, columns: int = 96) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def error(x: torch.Tensor) -> torch.Tensor:
    """By row and block, in steps: 127ths of the block's greatest number."""
    wide = torch.nn.functional.pad(x.double(), (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    left = torch.nn.functional.pad(rounded(x), (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    return (wide - left).abs().amax(-1) / (wide.abs().amax(-1) / 127)


def test_a_number_moves_by_half_a_step_of_its_block():
    x = drawn(50, 80)
    assert 0.3 < error(x).max() <= 0.5001


def test_a_block_that_stands_out_moves_by_a_hundredth_of_that():
    x = drawn()
    x[2, 40] = 1000.0
    steps = error(x)
    assert steps[2, 1] <= 0.51 / 128
    steps[2, 1] = 1
    assert steps.min() > 0.1, "the other blocks have one digit"


def test_whole_numbers_stay_as_they_are():
    x = drawn(4, 64).mul(40).round().clamp(-127, 127)
    x[:, ::32] = 127
    assert (rounded(x) - x).abs().max() < 1e-5


def test_a_row_is_rounded_by_what_it_holds_itself():
    x = drawn()
    for row in range(len(x)):
        assert torch.equal(rounded(x[row : row + 1])[0], rounded(x)[row])


def test_zeros_stay_zeros_and_what_is_no_number_stays_none():
    x = drawn()
    right = rounded(x)
    x[1], x[3, 5], x[4, 70] = 0.0, torch.nan, -torch.inf
    said = rounded(x)
    assert not said[1].any() and said[3].isnan().all() and said[4].isnan().all()
    assert torch.equal(said[[0, 2, 5]], right[[0, 2, 5]])


def test_product_is_near_the_product_of_the_floats():
    x, weight = drawn(), drawn(20)
    right = x.double() @ weight.double().T
    gap = (product(x, weight) - right).abs().mean() / right.std()
    assert 1e-4 < gap < 1e-2
