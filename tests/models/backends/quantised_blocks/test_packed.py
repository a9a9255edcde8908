"""Rows of a packed matrix: taken, joined and unpacked by parts, they keep every bit."""

import pytest
import torch

import gguf_blocks
from draftwood.models.backends.quantised_blocks import Kind, join, take_rows, unpack, unpack_some
from draftwood.models.backends.quantised_blocks import packed as packing
from draftwood.models.backends.quantised_blocks.packed import interleave, row_bytes


@pytest.mark.parametrize("kind", Kind)
def test_rows_come_back_from_the_groups(kind):
    packed = gguf_blocks.packed(kind, 37, 768)
    rows = row_bytes(packed)
    assert rows.shape == (48, packed.layout.row_bytes(24)) and not rows[37:].any()
    assert torch.equal(interleave(rows[:37], 768, kind).data, packed.data)
    assert torch.equal(row_bytes(packed, 1, 2), rows[16:32])


@pytest.mark.parametrize("kind", Kind)
def test_taken_rows_keep_their_bits(kind):
    packed = gguf_blocks.packed(kind, 37, 256)
    for ids in (torch.tensor([36, 0, 18, 0]), torch.arange(37).flip(0)):
        taken = take_rows(packed, ids)
        assert (taken.rows, taken.kind) == (len(ids), kind) and torch.equal(unpack(taken), unpack(packed)[ids])


@pytest.mark.parametrize("slice_bytes", [1, packing.SLICE])
def test_any_range_of_rows_is_unpacked(slice_bytes, monkeypatch):
    monkeypatch.setattr(packing, "SLICE", slice_bytes)
    packed = gguf_blocks.packed(Kind.Q5_K, 50, 512)
    whole = unpack(packed)
    for first, last in ((0, 50), (3, 4), (15, 33), (17, 49), (20, 20)):
        assert torch.equal(unpack_some(packed, first, last), whole[first:last])


def test_neighbours_of_one_type_become_one_matrix():
    a, b = (gguf_blocks.packed(Kind.Q4_K, 32, 256, seed) for seed in (0, 1))
    c, d = gguf_blocks.packed(Kind.Q6_K, 20, 256), gguf_blocks.packed(Kind.Q6_K, 16, 256)
    parts = join([a, b, c, d])
    assert [(p.rows, p.kind) for p in parts] == [(64, Kind.Q4_K), (20, Kind.Q6_K), (16, Kind.Q6_K)]
    assert torch.equal(torch.cat([unpack(p) for p in parts]), torch.cat([unpack(p) for p in (a, b, c, d)]))
    assert parts[1] is c, "20 rows end inside a group"
