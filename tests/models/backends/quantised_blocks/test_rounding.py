"""4-bit blocks lose less than a block's range cut into sixteen steps."""

import pytest
import torch

from draftwood.errors import WeightsError
from draftwood.models.backends.quantised_blocks import Kind, pack, round_four_bits, unpack


def test_the_error_is_smaller_than_that_of_equal_steps_over_the_range():
    weight = torch.randn(48, 256, generator=torch.Generator().manual_seed(0))
    weight[3, 7] = 9.0  # one weight far from all others
    packed = round_four_bits(weight)
    assert packed.kind is Kind.Q4_1 and (packed.rows, packed.columns) == (48, 256)
    blocks = weight.view(48, 8, 32)
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    step = (high - low) / 15
    plain = (((blocks - low) / step).round() * step + low).view(48, 256)
    error, wanted = (float((each - weight).square().sum()) for each in (unpack(packed), plain))
    assert error < 0.9 * wanted


def test_weights_that_four_bits_hold_stay_as_they_are():
    weight = 0.25 * torch.arange(16.0).repeat(16, 4) - 1.0
    assert torch.equal(unpack(round_four_bits(weight)), weight)
    assert torch.equal(round_four_bits(weight).data, pack(weight).data)


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0])
def test_equal_weights_and_zeros_are_exact(value: float):
    weight = torch.full((16, 32), value)
    assert torch.equal(unpack(round_four_bits(weight)), weight)


def test_columns_that_are_no_blocks_are_refused():
    with pytest.raises(WeightsError, match="33 columns cannot be cut"):
        round_four_bits(torch.zeros(4, 33))
