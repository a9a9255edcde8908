"""Blocks of a GGUF file become the very weights that the gguf package reads from them, in about as many bytes."""

import pytest
import torch

import gguf_blocks
from draftwood.errors import WeightsError
from draftwood.models.backends.quantised_blocks import Kind, packed_from_blocks, unpack
from draftwood.models.backends.quantised_blocks.kinds import FLOATS, LAYOUTS

SHAPES = [(16, 256), (37, 768), (5, 96), (1, 32), (20, 7)]
CASES = [(kind, r, c) for kind in Kind for r, c in SHAPES if c % LAYOUTS[kind].columns_raw == 0]
BITS = {"Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625,
        "IQ4_NL": 4.5, "IQ4_XS": 4.25, "F16": 16, "BF16": 16, "F32": 32}  # fmt: skip


@pytest.mark.parametrize(("kind", "rows", "columns"), CASES)
def test_weights_are_those_of_the_gguf_package(kind, rows, columns):
    raw = gguf_blocks.blocks(kind, rows, columns)
    before = raw.clone()
    packed = packed_from_blocks(raw, kind.name, rows, columns)
    assert (packed.rows, packed.columns, packed.kind) == (rows, columns, kind)
    assert torch.equal(unpack(packed), gguf_blocks.dequantised(raw, kind, columns))
    assert torch.equal(raw, before)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in FLOATS])
def test_any_changed_byte_of_a_block_changes_weights(kind):
    """The twin: were a sub-scale or a bit left out, this byte would change nothing."""
    raw = gguf_blocks.blocks(kind, 1, 256)
    right = unpack(packed_from_blocks(raw, kind.name, 1, 256))
    for at in range(LAYOUTS[kind].raw):
        wrong = raw.clone()
        wrong[0, at] ^= 1
        said = unpack(packed_from_blocks(wrong, kind.name, 1, 256))
        assert not torch.equal(said, right), at
        assert torch.equal(said, gguf_blocks.dequantised(wrong, kind, 256)), at


@pytest.mark.parametrize("kind", Kind)
def test_bytes_are_about_those_of_the_file(kind):
    rows, columns = 64, 1024
    file = rows * columns // LAYOUTS[kind].columns_raw * LAYOUTS[kind].raw
    assert file * 8 == BITS[kind.name] * rows * columns
    assert file <= gguf_blocks.packed(kind, rows, columns).data.numel() <= 1.04 * file


def test_unknown_type_is_named():
    with pytest.raises(WeightsError, match=r"'Q2_K' are unknown\nhint: .*Q4_K"):
        packed_from_blocks(torch.zeros(1, 84, dtype=torch.uint8), "Q2_K", 1, 256)


@pytest.mark.parametrize(("kind", "columns"), [("Q4_0", 48), ("Q4_K", 128), ("IQ4_XS", 0), ("F16", 0)])
def test_columns_that_are_no_whole_blocks_are_refused(kind, columns):
    with pytest.raises(WeightsError, match=f"rows of {columns}\nhint:"):
        packed_from_blocks(torch.zeros(1, 36, dtype=torch.uint8), kind, 1, columns)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (torch.zeros(2, 143, dtype=torch.uint8), r"\[2, 144\], got torch.uint8 \[2, 143\]"),
        (torch.zeros(3, 144, dtype=torch.uint8), r"\[2, 144\], got torch.uint8 \[3, 144\]"),
        (torch.zeros(288, dtype=torch.uint8), r"got torch.uint8 \[288\]"),
        (torch.zeros(2, 144, dtype=torch.int8), r"got torch.int8"),
    ],
)
def test_bytes_of_another_size_are_refused(raw, said):
    with pytest.raises(WeightsError, match=said):
        packed_from_blocks(raw, "Q4_K", 2, 256)
