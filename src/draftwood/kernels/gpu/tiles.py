"""How a product is divided among the programs of a kernel. Found by measuring on an H200; other shapes follow a rule."""

from dataclasses import dataclass
from functools import cache

FEWEST, MOST = 16, 64  # tokens of a product in these kernels; more are a library's
PROGRAMS = 96  # that fill most of a chip of 132 multiprocessors
MOST_PARTS = 64  # of the columns of a sequence, which one program joins
SHARED = 160 * 1024  # bytes of a program's stages


@dataclass(frozen=True, slots=True)
class Tiles:
    """`bn` rows and `bk` columns of the matrix at a time, `stages` of them in flight, `split` programs for the columns of a
    tile. `early`: the next kernel may begin to start when this one starts, else when its sums are done."""

    bn: int
    bk: int
    stages: int
    warps: int = 4
    split: int = 1
    early: bool = True

    @property
    def matrix_first(self) -> bool:
        """Rows of the matrix as the wide side of a matrix instruction, which takes at least 64."""
        return self.bn >= 64


# (columns, rows) of the matrix -> tiles by tokens. 4096 wide: an 8B model; 576 wide: SmolLM2-135M.
MEASURED: dict[tuple[str, int, int], dict[int, Tiles]] = {
    ("rotated", 4096, 6144): {
        16: Tiles(64, 256, 4, early=False), 32: Tiles(64, 128, 5, early=False), 64: Tiles(64, 128, 4)
    },
    ("added", 4096, 4096): {
        16: Tiles(64, 128, 4, split=4), 32: Tiles(64, 128, 4, split=4), 64: Tiles(64, 128, 4, split=2)
    },
    ("gated", 4096, 28672): {
        16: Tiles(64, 128, 4, early=False), 32: Tiles(64, 128, 4, early=False), 64: Tiles(128, 64, 4, 8, early=False)
    },
    ("added", 14336, 4096): {
        16: Tiles(64, 128, 4, split=4), 32: Tiles(64, 128, 5, split=2), 64: Tiles(64, 128, 4, split=2)
    },
    ("scored", 4096, 128256): {16: Tiles(128, 128, 3), 32: Tiles(128, 128, 3), 64: Tiles(128, 64, 4)},
    ("rotated", 576, 960): {16: Tiles(16, 64, 9, 2)},
    ("added", 576, 576): {16: Tiles(64, 64, 9)},
    ("gated", 576, 3072): {16: Tiles(64, 64, 5, early=False)},
    ("added", 1536, 576): {16: Tiles(16, 128, 4, split=3)},
    ("scored", 576, 49152): {16: Tiles(64, 64, 3), 32: Tiles(64, 64, 3), 64: Tiles(64, 64, 3)},
}  # fmt: skip


@cache
def tiles_for(kind: str, columns: int, rows: int, tokens: int, unit: int = 0, whole: bool = False) -> Tiles | None:
    """`unit`: rows that a tile must divide (a head where heads are rotated), or, if `whole`, must be. None: no tile fits."""
    found = None if whole else MEASURED.get((kind, columns, rows), {}).get(tokens)
    return found or _by_rule(kind, columns, rows, tokens, unit, whole)


def _by_rule(kind: str, columns: int, rows: int, tokens: int, unit: int, whole: bool) -> Tiles | None:
    """The widest tile that leaves enough programs; else the narrowest one, its columns split where sums can be joined."""
    fits = [n for n in (128, 64, 32, 16) if unit % n == 0 and (kind == "scored" or rows % n == 0)]
    fits = [n for n in fits if n <= 64 or tokens == MOST or kind == "scored"]
    if whole:
        fits = [unit] if unit in (16, 32, 64, 128, 256) else []
    if not fits:
        return None
    bn = next((n for n in fits if rows // n >= PROGRAMS), fits[-1])
    split = 1
    if kind == "added":
        split = next((s for s in (4, 3, 2) if columns % (s * 64) == 0 and rows // bn * s <= 4 * PROGRAMS), 1)
    part = columns // split
    bk = next((k for k in (128, 64, 32, 16) if part % k == 0 and 2 * k * (bn + tokens) * 2 <= SHARED), None)
    if bk is None:
        return None
    stages = max(2, min(5, SHARED // (2 * bk * (bn + tokens)), part // bk))
    return Tiles(bn, bk, stages, 8 if bn >= 128 and tokens == MOST else 4, split, kind != "gated")


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """`rows` of queries and `columns` of keys at a time; a part of the columns for each program."""

    rows: int
    columns: int
    part: int
    warps: int = 4
    stages: int = 2


def attention_tiles(lines: int, width: int, group: int, context: int) -> AttentionTiles:
    """Few sequences are divided finely, so that they fill the chip; many fill it undivided."""
    most = width * group
    rows = 16 if most <= 16 else 32 if most <= 32 else 64
    columns = 64 if most <= 16 or rows == 64 else 128
    if lines >= 8 or most > 4 * 64:
        part = 1024
    elif width == 1:
        part = 64
    else:
        part = 128 if context <= 2048 or most <= 64 else 512
    # Tiles of a prompt fill the chip themselves, and what they leave for each part takes memory.
    most_parts = max(1, min(MOST_PARTS, 4 * MOST_PARTS * rows // most))
    while context > most_parts * part:
        part *= 2
    return AttentionTiles(rows, columns, max(part, columns))


# Batch-invariant: the same columns in every pass, whatever its size.
INVARIANT_COLUMNS, INVARIANT_PART = 64, 128


def invariant_attention_tiles(width: int, group: int) -> AttentionTiles:
    most = width * group
    return AttentionTiles(16 if most <= 16 else 32 if most <= 32 else 64, INVARIANT_COLUMNS, INVARIANT_PART)
