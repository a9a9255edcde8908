"""Weights in blocks of 32 columns with a scale each: 4 bits where that is exact, 8 bits otherwise.

    kind 4   weight = scale * nibble + minimum      exactly the weights of a Q4_1 file
    kind 8   weight = scale * (byte - 128)          exactly the weights of a Q8_0 file, or any weights rounded

Sixteen weight rows are interleaved, so that one vector holds 16 rows x 4 columns; `kernels/cpu/source/product.hpp` reads
them.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

BLOCK, GROUP = 32, 16


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A matrix [rows, columns] in blocks."""

    data: UInt8[Tensor, "bytes"]
    rows: int
    columns: int
    kind: int

    @property
    def blocks(self) -> int:
        return -(-self.columns // BLOCK)

    @property
    def groups(self) -> int:
        return -(-self.rows // GROUP)


def pack(weight: Float[Tensor, "rows columns"]) -> Packed:
    """In 4 bits if that changes no weight, otherwise in 8."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % GROUP))
    blocks = padded.view(padded.shape[0], -1, BLOCK)
    found = _four_bits(blocks) if columns % BLOCK == 0 else None
    if found is not None:
        return Packed(_lay_nibbles(*found), rows, columns, 4)
    return Packed(_lay_bytes(*_eight_bits(blocks)), rows, columns, 8)


def _four_bits(x: Float[Tensor, "rows blocks 32"]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Nibbles, scales and minima that reproduce every weight exactly, or None. A quantiser maps the least weight of a
    block to 0 and the greatest to 15, so scale and minimum follow from the two."""
    low, high = x.amin(-1), x.amax(-1)
    scale, minimum = ((high - low) / 15).half(), low.half()
    if not torch.equal(minimum.float(), low):
        return None
    step = scale.float()[..., None]
    nibbles = torch.where(step > 0, (x - low[..., None]) / step, 0.0).round()
    if not (bool((nibbles <= 15).all()) and torch.equal(step * nibbles + low[..., None], x)):
        return None
    return nibbles.to(torch.uint8), scale, minimum


def _eight_bits(x: Float[Tensor, "rows blocks 32"]) -> tuple[Tensor, Tensor]:
    scale = (x.abs().amax(-1) / 127).half()
    step = scale.float()[..., None]
    values = torch.where(step > 0, x / step, 0.0).round().clamp(-127, 127)
    return (values + 128).to(torch.uint8), scale


def _lay_nibbles(nibbles: Tensor, scale: Tensor, minimum: Tensor) -> UInt8[Tensor, "bytes"]:
    rows, count, _ = nibbles.shape
    # row group, row, block, half of the block, vector, column -> group, block, half, vector, row, column
    parts = nibbles.view(rows // GROUP, GROUP, count, 2, 4, 4).permute(0, 2, 3, 4, 1, 5)
    weights = (parts[:, :, 0] | parts[:, :, 1] << 4).reshape(rows // GROUP, -1)
    both = torch.stack([_by_block(scale), _by_block(minimum)], dim=2).flatten(1)
    return torch.cat([weights, both.view(torch.uint8)], dim=1).flatten()


def _lay_bytes(values: Tensor, scale: Tensor) -> UInt8[Tensor, "bytes"]:
    rows, count, _ = values.shape
    weights = values.view(rows // GROUP, GROUP, count, 8, 4).permute(0, 2, 3, 1, 4).reshape(rows // GROUP, -1)
    scales = _by_block(scale).flatten(1).contiguous().view(torch.uint8)
    return torch.nn.functional.pad(torch.cat([weights, scales], dim=1), (0, (-count * 32) % 64)).flatten()


def _by_block(x: Tensor) -> Tensor:
    """[rows, blocks] -> [groups, blocks, 16]"""
    return x.view(-1, GROUP, x.shape[1]).transpose(1, 2).contiguous()


def unpack(packed: Packed) -> Float[Tensor, "rows columns"]:
    """The weights as floats."""
    values, scale, minimum = _parts(packed)
    full = scale.float()[..., None] * values
    full = full if minimum is None else full + minimum.float()[..., None]
    return full.flatten(1)[: packed.rows, : packed.columns]


def take_rows(packed: Packed, ids: Int[Tensor, "W"]) -> Packed:
    """Some rows of the matrix, with unchanged weights."""
    values, scale, minimum = _parts(packed)
    pad = torch.cat([ids, ids.new_zeros(-len(ids) % GROUP)])
    if minimum is None:
        data = _lay_bytes((values[pad] + 128).to(torch.uint8), scale[pad])
    else:
        data = _lay_nibbles(values[pad].to(torch.uint8), scale[pad], minimum[pad])
    return Packed(data, len(ids), packed.columns, packed.kind)


def _parts(packed: Packed) -> tuple[Float[Tensor, "R blocks 32"], Tensor, Tensor | None]:
    """Whole numbers by row, block and column, scales, and minima if there are any."""
    groups, count = packed.groups, packed.blocks
    by_group = packed.data.view(groups, -1)
    size = count * (256 if packed.kind == 4 else 512)
    weights = by_group[:, :size]
    if packed.kind == 4:
        vectors = weights.reshape(groups, count, 1, 4, GROUP, 4)
        both = torch.cat([vectors & 15, vectors >> 4], dim=2)
        values = both.permute(0, 4, 1, 2, 3, 5).reshape(groups * GROUP, count, BLOCK).float()
        halves = by_group[:, size:].contiguous().view(torch.float16).view(groups, count, 2, GROUP)
        return values, _by_row(halves[:, :, 0]), _by_row(halves[:, :, 1])
    vectors = weights.reshape(groups, count, 8, GROUP, 4)
    values = vectors.permute(0, 3, 1, 2, 4).reshape(groups * GROUP, count, BLOCK).float() - 128
    halves = by_group[:, size : size + count * 32].contiguous().view(torch.float16).view(groups, count, GROUP)
    return values, _by_row(halves), None


def _by_row(x: Tensor) -> Tensor:
    """[groups, blocks, 16] -> [rows, blocks]"""
    return x.transpose(1, 2).reshape(-1, x.shape[1])
