"""The block types, and which bytes each keeps of a weight row. `kernels/cpu/source/blocks.hpp` reads the same bytes.

Sixteen weight rows are interleaved. Their columns are divided into chunks: a head with the scales, then 1, 2 or 8 blocks of
32 columns. Head and blocks are lists of items; an item of the sixteen rows lies together, row by row, so that one vector
holds 16 rows x 4 columns, or the scales of 16 rows.

    low bits     item v of a block, 4 bytes: columns 4v..4v+3 in the low nibbles, 16+4v..16+4v+3 in the high ones
    fifth bit    4 bytes a block: bit v of byte k belongs to column 4v+k
    bits 5, 6    8 bytes a block: bits 2(v%4), 2(v%4)+1 of byte 4(v/4)+k belong to column 4v+k
"""

from dataclasses import dataclass
from enum import IntEnum
from math import prod

BLOCK, GROUP = 32, 16
Items = tuple[tuple[int, int], ...]  # (number of items, bytes of an item in a row)


class Kind(IntEnum):
    """Numbered as in GGUF files."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    BF16 = 30


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of a weight row. `raw`: bytes of a block of the file, which has `columns_raw` columns."""

    blocks: int  # of a chunk
    head: Items
    block: Items
    columns_raw: int
    raw: int

    @property
    def head_bytes(self) -> int:
        return sum(map(prod, self.head))

    @property
    def block_bytes(self) -> int:
        return sum(map(prod, self.block))

    def chunks(self, count: int) -> list[tuple[int, int]]:
        """(number of chunks, blocks of each) for `count` blocks: full ones, then a shorter last one."""
        full, left = divmod(count, self.blocks)
        return [(full, self.blocks)] * (full > 0) + [(1, left)] * (left > 0)

    def row_bytes(self, count: int) -> int:
        """Of `count` blocks."""
        return sum(n * (self.head_bytes + each * self.block_bytes) for n, each in self.chunks(count))


_NIBBLES = (4, 4)
_PAIR = ((2, 2),)  # scale and minimum of one block, or scales of two

LAYOUTS = {
    Kind.F32: Layout(1, (), ((32, 4),), 1, 4),
    Kind.F16: Layout(1, (), ((32, 2),), 1, 2),
    Kind.BF16: Layout(1, (), ((32, 2),), 1, 2),
    Kind.Q4_0: Layout(2, _PAIR, (_NIBBLES,), 32, 18),
    Kind.IQ4_NL: Layout(2, _PAIR, (_NIBBLES,), 32, 18),
    Kind.Q4_1: Layout(1, _PAIR, (_NIBBLES,), 32, 20),
    Kind.Q5_0: Layout(2, _PAIR, ((1, 4), _NIBBLES), 32, 22),
    Kind.Q5_1: Layout(1, _PAIR, ((1, 4), _NIBBLES), 32, 24),
    Kind.Q8_0: Layout(2, _PAIR, ((8, 4),), 32, 34),
    # d, -dmin; 8 scales; 8 minima
    Kind.Q4_K: Layout(8, ((2, 2), (16, 1)), (_NIBBLES,), 256, 144),
    Kind.Q5_K: Layout(8, ((2, 2), (16, 1)), ((1, 4), _NIBBLES), 256, 176),
    # d, nothing; scales
    Kind.Q6_K: Layout(8, ((2, 2), (16, 1)), ((2, 4), _NIBBLES), 256, 210),
    Kind.IQ4_XS: Layout(8, ((2, 2), (8, 1)), (_NIBBLES,), 256, 136),
}

NONLINEAR = (
    -127,
    -104,
    -83,
    -65,
    -49,
    -35,
    -22,
    -10,
    1,
    13,
    25,
    38,
    53,
    69,
    89,
    113,
)  # the levels of IQ4_NL and IQ4_XS
FLOATS = (Kind.F32, Kind.F16, Kind.BF16)
WIDE = (
    Kind.Q8_0,
    Kind.IQ4_NL,
    Kind.IQ4_XS,
)  # levels above 63, plus their offset: products of two do not fit into 16 bits
WITH_MINIMUM = (Kind.Q4_1, Kind.Q5_1, Kind.Q4_K, Kind.Q5_K)
OFFSET = {Kind.Q4_0: 8, Kind.Q5_0: 16, Kind.Q8_0: 128, Kind.Q6_K: 32}  # what is stored is this much more than the level
