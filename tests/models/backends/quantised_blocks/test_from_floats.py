"""Weights that a quantiser made come back to the bit; any others are near."""

import pytest
import torch
from torch import Tensor

from draftwood.models.backends.quantised_blocks import Kind, Packed, pack, take_rows, unpack

NOISE = torch.Generator()


def four_bits(rows: int, columns: int) -> Tensor:
    """As in a Q4_1 file: d * q + m, with d and m in halves, and every block using its whole range."""
    NOISE.manual_seed(rows + columns)
    q = torch.randint(0, 16, (rows, columns // 32, 32), generator=NOISE)
    q[..., 3], q[..., 20] = 0, 15
    d = (0.01 + torch.rand(rows, columns // 32, 1, generator=NOISE) / 50).half().float()
    m = (-8 * d + torch.randn(d.shape, generator=NOISE) / 100).half().float()
    return (d * q + m).flatten(1)


def eight_bits(rows: int, columns: int) -> Tensor:
    """As in a Q8_0 file: d * q with d in halves, the greatest at 127."""
    NOISE.manual_seed(rows + columns)
    q = torch.randint(-127, 128, (rows, columns // 32, 32), generator=NOISE)
    q[..., 9] = 127
    d = (0.001 + torch.rand(rows, columns // 32, 1, generator=NOISE) / 50).half().float()
    return (d * q).flatten(1)


def floats(rows: int, columns: int) -> Tensor:
    NOISE.manual_seed(rows + columns)
    return torch.randn(rows, columns, generator=NOISE)


EVERY = [
    (four_bits, 16, 32), (four_bits, 50, 160), (eight_bits, 16, 32), (eight_bits, 33, 96), (floats, 16, 32),
    (floats, 7, 70), (floats, 1, 1), (floats, 61, 100),
]  # fmt: skip


@pytest.mark.parametrize(("make", "rows", "columns"), EVERY[:2])
def test_four_bit_weights_come_back_exactly_in_four_bits(make, rows, columns):
    weight = make(rows, columns)
    packed = pack(weight)
    assert packed.kind is Kind.Q4_1 and torch.equal(unpack(packed), weight)


@pytest.mark.parametrize(("make", "rows", "columns"), EVERY[2:4])
def test_eight_bit_weights_come_back_exactly_in_eight_bits(make, rows, columns):
    weight = make(rows, columns)
    packed = pack(weight)
    assert packed.kind is Kind.Q8_0 and torch.equal(unpack(packed), weight)


def test_one_weight_off_the_grid_makes_it_eight_bits():
    weight = four_bits(20, 64)
    weight[13, 40] += 1e-4
    assert pack(weight).kind is Kind.Q8_0


@pytest.mark.parametrize(("make", "rows", "columns"), EVERY[4:])
def test_any_weight_is_within_half_a_step(make, rows, columns):
    weight = make(rows, columns)
    packed = pack(weight)
    padded = torch.nn.functional.pad(weight, (0, -columns % 32)).view(rows, -1, 32)
    step = (padded.abs().amax(-1, keepdim=True) / 127).expand_as(padded).flatten(1)[:, :columns]
    gap = (unpack(packed) - weight).abs()
    # A little more at the ends: the scale is a half, and 127 of them may fall short of the greatest weight.
    assert packed.kind is Kind.Q8_0 and (gap <= 0.5 * step + 127 * step * 2**-11).all()
    assert gap.mean() < 0.3 * step.mean()


@pytest.mark.parametrize("make", [four_bits, eight_bits])
def test_zero_blocks_stay_zero(make):
    weight = make(18, 96)
    weight[4, 32:64] = 0
    weight[17] = 0
    packed = pack(weight)
    assert packed.kind is (Kind.Q4_1 if make is four_bits else Kind.Q8_0) and torch.equal(unpack(packed), weight)
    assert torch.equal(unpack(pack(torch.zeros(5, 40))), torch.zeros(5, 40))


@pytest.mark.parametrize(("make", "rows", "columns"), EVERY)
def test_taken_rows_have_the_very_same_numbers(make, rows, columns):
    packed = pack(make(rows, columns))
    for ids in (torch.tensor([rows - 1, 0, rows // 2, 0]), torch.arange(rows).flip(0)):
        taken = take_rows(packed, ids)
        assert (taken.rows, taken.kind) == (len(ids), packed.kind)
        assert torch.equal(unpack(taken), unpack(packed)[ids])


@pytest.mark.parametrize(("make", "rows", "columns"), EVERY)
def test_bytes_are_as_many_as_the_kernels_read(make, rows, columns):
    packed: Packed = pack(make(rows, columns))
    group = packed.blocks * (256 + 64 if packed.kind is Kind.Q4_1 else 512 + 32)
    assert (packed.groups, packed.blocks) == (-(-rows // 16), -(-columns // 32))
    assert packed.data.numel() == packed.groups * (-(-group // 64) * 64)
    assert (packed.rows, packed.columns, packed.data.dtype) == (rows, columns, torch.uint8)


def test_four_bits_take_five_per_weight():
    weight = four_bits(64, 256)
    assert pack(weight).data.numel() * 8 / weight.numel() == 5
