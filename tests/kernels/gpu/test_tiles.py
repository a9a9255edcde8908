"""Tiles divide what they are for, and leave neither too many parts nor too much to keep."""

import itertools

import pytest

from draftwood.kernels.gpu.tiles import (
    FEWEST,
    MEASURED,
    MOST,
    MOST_PARTS,
    SHARED,
    attention_tiles,
    invariant_attention_tiles,
    tiles_for,
)

BUCKETS = (FEWEST, 2 * FEWEST, MOST)
# (columns, rows, unit) of products of an 8B model, of the embedded one, and of others
SHAPES = [
    (4096, 6144, 128),
    (4096, 28672, 28672),
    (14336, 4096, 4096),
    (576, 960, 64),
    (1536, 576, 576),
    (896, 1152, 64),
]


@pytest.mark.parametrize(("columns", "rows", "unit"), SHAPES)
@pytest.mark.parametrize("tokens", BUCKETS)
@pytest.mark.parametrize("kind", ["rotated", "added", "gated", "scored"])
def test_tiles_divide_the_matrix(kind: str, columns: int, rows: int, unit: int, tokens: int) -> None:
    t = tiles_for(kind, columns, rows, tokens, unit)
    assert t is not None
    assert (kind == "scored" or rows % t.bn == 0) and unit % t.bn == 0 and columns % (t.split * t.bk) == 0
    assert t.split == 1 or kind == "added"
    assert t.stages * t.bk * (t.bn + tokens) * 2 <= 1.2 * SHARED


def test_what_was_measured_fits_too() -> None:
    for (kind, columns, rows), by_tokens in MEASURED.items():
        for t in by_tokens.values():
            assert columns % (t.split * t.bk) == 0 and (kind == "scored" or rows % t.bn == 0), (kind, columns, rows)


def test_a_norm_of_heads_takes_whole_heads_and_what_does_not_fit_is_none() -> None:
    for tokens in BUCKETS:
        whole = tiles_for("rotated", 1024, 4096, tokens, 128, True)
        assert whole is not None and whole.bn == 128
    assert tiles_for("rotated", 1024, 3 * 48, 16, 48, True) is None
    assert tiles_for("added", 40, 64, 16, 64) is None, "16 does not divide the columns"


def test_attention_is_divided_finely_where_little_else_fills_the_chip() -> None:
    for lines, width, group, context in itertools.product(
        (1, 4, 32), (1, 16, 64, 512, 2048), (1, 3, 8), (64, 4096, 131072)
    ):
        t = attention_tiles(lines, width, group, context)
        parts, tiles = -(-context // t.part), -(-width * group // t.rows)
        assert t.part % t.columns == 0 and parts <= MOST_PARTS
        assert tiles * parts <= 8 * MOST_PARTS or parts == 1, (lines, width, group, context)
    assert attention_tiles(1, 1, 4, 512).part == 64 and attention_tiles(32, 1, 4, 512).part == 1024


def test_batch_invariant_tiles_have_the_same_columns_for_every_width() -> None:
    found = {(t.columns, t.part) for t in (invariant_attention_tiles(width, 4) for width in (1, 2, 7, 16, 64, 512))}
    assert len(found) == 1
