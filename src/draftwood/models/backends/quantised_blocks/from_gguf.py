"""The blocks of a GGUF file, rearranged for the kernels. Bits are moved, never rounded, and no float copy is made."""

from collections.abc import Callable

import torch
from jaxtyping import UInt8
from torch import Tensor

from draftwood.errors import WeightsError
from draftwood.models.backends.quantised_blocks.from_floats import in_chunks
from draftwood.models.backends.quantised_blocks.kinds import BLOCK, FLOATS, LAYOUTS, Kind
from draftwood.models.backends.quantised_blocks.packed import FIFTH, SIXTH, SLICE, Packed, interleave


def packed_from_blocks(raw: Tensor, kind: str, rows: int, columns: int) -> Packed:
    """Whole weight rows as they lie in a file. `kind`: the block type by its GGUF name, for example "Q4_K"."""
    if kind not in Kind.__members__:
        raise WeightsError(f"blocks of type {kind!r} are unknown\nhint: {', '.join(Kind.__members__)}")
    found = Kind[kind]
    layout = LAYOUTS[found]
    if columns < 1 or columns % layout.columns_raw:
        raise WeightsError(
            f"{kind} has blocks of {layout.columns_raw} columns, which do not divide rows of {columns}\n"
            "hint: the file is damaged, or the tensor's shape is wrong"
        )
    wanted = rows, columns // layout.columns_raw * layout.raw
    if raw.dtype != torch.uint8 or tuple(raw.shape) != wanted or not rows:
        said = f"{rows} rows of {columns} columns in {kind} are bytes of the shape {list(wanted)}"
        raise WeightsError(f"{said}, got {raw.dtype} {list(raw.shape)}\nhint: the file is damaged or truncated")
    width = layout.row_bytes(-(-columns // BLOCK))
    moved = torch.empty(rows, width, dtype=torch.uint8)
    step = max(1, SLICE // width)
    for at in range(0, rows, step):
        moved[at : at + step] = _rows(raw[at : at + step], found, columns)
    return interleave(moved, columns, found)


def _rows(raw: UInt8[Tensor, "rows bytes"], kind: Kind, columns: int) -> UInt8[Tensor, "rows moved"]:
    layout = LAYOUTS[kind]
    if kind in FLOATS:
        return torch.nn.functional.pad(raw, (0, -columns % BLOCK * layout.raw))
    return _MOVES[kind](raw.unflatten(1, (-1, layout.raw)))


def _pairs(kind: Kind) -> Callable[[Tensor], Tensor]:
    """Of types with one scale to a block, which comes first."""

    def move(blocks: Tensor) -> Tensor:
        body = blocks[..., 2:]
        if kind is Kind.Q8_0:
            body = body ^ 128  # a signed number plus 128
        elif kind is Kind.Q5_0:
            body = torch.cat([_fifth(body[..., None, :4]).flatten(2), body[..., 4:]], dim=2)
        return in_chunks(blocks[..., :2].contiguous().view(torch.float16).squeeze(-1), body, kind)

    return move


def _fifth(bits: UInt8[Tensor, "*S 4"]) -> UInt8[Tensor, "*S 4"]:
    """From bit c of 32 for column c to our order."""
    columns = (bits.unsqueeze(-1) >> FIFTH.squeeze() & 1).unflatten(-1, (2, 4)).flatten(-3, -2)  # [*S, 8, 4]
    return _joined(columns, FIFTH)


def _joined(bits: UInt8[Tensor, "*S V 4"], shifts: UInt8[Tensor, "V 1"]) -> UInt8[Tensor, "*S 4"]:
    return (bits << shifts).sum(-2, dtype=torch.uint8)


def _q5_1(blocks: Tensor) -> Tensor:
    return torch.cat([blocks[..., :4], _fifth(blocks[..., None, 4:8]).flatten(2), blocks[..., 8:]], dim=2).flatten(1)


def _nibbles(low: UInt8[Tensor, "*S 32"]) -> UInt8[Tensor, "*S 16"]:
    return low[..., :16] | low[..., 16:] << 4


def _k_head(blocks: UInt8[Tensor, "rows chunks bytes"]) -> UInt8[Tensor, "rows chunks 20"]:
    """d, -dmin, scales and minima of Q4_K and Q5_K: twelve bytes of 6-bit numbers become sixteen."""
    d, minimum = blocks[..., :2], blocks[..., 2:4].clone()
    minimum[..., 1] ^= 128  # the sign
    a, b, c = blocks[..., 4:16].unflatten(2, (3, 4)).unbind(2)
    return torch.cat([d, minimum, a & 63, c & 15 | a >> 6 << 4, b & 63, c >> 4 | b >> 6 << 4], dim=2)


def _k_low(low: UInt8[Tensor, "rows chunks 128"]) -> UInt8[Tensor, "rows chunks 8 16"]:
    """32 bytes of a file hold one block in the low nibbles and the next one in the high ones."""
    pairs = low.unflatten(2, (4, 32))
    return _nibbles(torch.stack([pairs & 15, pairs >> 4], dim=3).flatten(2, 3))


def _q4_k(blocks: Tensor) -> Tensor:
    return torch.cat([_k_head(blocks), _k_low(blocks[..., 16:]).flatten(2)], dim=2).flatten(1)


def _q5_k(blocks: Tensor) -> Tensor:
    bits = blocks[..., 16:48].unsqueeze(2) >> FIFTH & 1  # bit b of byte j: column j of block b
    above = _joined(bits.unflatten(3, (8, 4)), FIFTH)
    body = torch.cat([above, _k_low(blocks[..., 48:])], dim=3)
    return torch.cat([_k_head(blocks), body.flatten(2)], dim=2).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    low, above = blocks[..., :128].unflatten(2, (2, 2, 32)), blocks[..., 128:192].unflatten(2, (2, 1, 32))
    low = torch.cat([low & 15, low >> 4], dim=3).flatten(2, 3)  # [rows, chunks, 8, 32]
    above = (above >> SIXTH & 3).flatten(2, 3)
    body = torch.cat([_joined(above.unflatten(3, (2, 4, 4)), SIXTH).flatten(3), _nibbles(low)], dim=3)
    nothing = torch.zeros_like(blocks[..., :2])
    return torch.cat([blocks[..., 208:], nothing, blocks[..., 192:208], body.flatten(2)], dim=2).flatten(1)


def _iq4_xs(blocks: Tensor) -> Tensor:
    low = blocks[..., 4:8]
    low = torch.stack([low & 15, low >> 4], dim=3).flatten(2)
    high = (blocks[..., 2:4].unsqueeze(3) >> SIXTH.squeeze() & 3).flatten(2)
    scales = (low | high << 4) - 32  # signed, as bytes
    nothing = torch.zeros_like(blocks[..., :2])
    return torch.cat([blocks[..., :2], nothing, scales, blocks[..., 8:]], dim=2).flatten(1)


_MOVES: dict[Kind, Callable[[Tensor], Tensor]] = {
    **{kind: _pairs(kind) for kind in (Kind.Q4_0, Kind.IQ4_NL, Kind.Q5_0, Kind.Q8_0)},
    Kind.Q4_1: lambda blocks: blocks.flatten(1),
    Kind.Q5_1: _q5_1,
    Kind.Q4_K: _q4_k,
    Kind.Q5_K: _q5_k,
    Kind.Q6_K: _q6_k,
    Kind.IQ4_XS: _iq4_xs,
}
