"""Floats to blocks of 32 columns: 4 bits where that is exact, 8 bits otherwise.

Q4_1   weight = scale * nibble + minimum      exactly the weights of a Q4_1 file
Q8_0   weight = scale * level                 exactly the weights of a Q8_0 file, or any weights rounded
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from draftwood.models.backends.quantised_blocks.kinds import BLOCK, LAYOUTS, OFFSET, Kind
from draftwood.models.backends.quantised_blocks.packed import Packed, interleave


def pack(weight: Float[Tensor, "rows columns"], kind: Kind | None = None) -> Packed:
    """In 4 bits if that changes no weight, otherwise in 8. `kind`: Kind.Q8_0 asks for 8 bits in any case."""
    columns = weight.shape[1]
    blocks = torch.nn.functional.pad(weight.float(), (0, -columns % BLOCK)).unflatten(1, (-1, BLOCK))
    found = _four_bits(blocks) if columns % BLOCK == 0 and kind is not Kind.Q8_0 else None
    if found is not None:
        return interleave(found, columns, Kind.Q4_1)
    return interleave(_eight_bits(blocks), columns, Kind.Q8_0)


def _four_bits(x: Float[Tensor, "rows blocks 32"]) -> UInt8[Tensor, "rows bytes_per_row"] | None:
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
    whole = nibbles.to(torch.uint8)
    head = torch.stack([scale, minimum], dim=-1).view(torch.uint8)
    return torch.cat([head, whole[..., :16] | whole[..., 16:] << 4], dim=-1).flatten(1)


def _eight_bits(x: Float[Tensor, "rows blocks 32"]) -> UInt8[Tensor, "rows bytes_per_row"]:
    scale = (x.abs().amax(-1) / 127).half()
    step = scale.float()[..., None]
    values = torch.where(step > 0, x / step, 0.0).round().clamp(-127, 127)
    return in_chunks(scale, (values + OFFSET[Kind.Q8_0]).to(torch.uint8), Kind.Q8_0)


def in_chunks(
    scale: Float[Tensor, "rows blocks"], blocks: UInt8[Tensor, "rows blocks bytes"], kind: Kind
) -> UInt8[Tensor, "rows bytes_per_row"]:
    """Blocks by two: both scales, then both blocks. Where the number is odd, the last has a scale of zero beside its own."""
    rows, at, found = len(scale), 0, list[Tensor]()
    for chunks, each in LAYOUTS[kind].chunks(scale.shape[1]):
        count = chunks * each
        heads = torch.nn.functional.pad(scale[:, at : at + count].view(rows, chunks, each), (0, 2 - each))
        body = blocks[:, at : at + count].reshape(rows, chunks, -1)
        found.append(torch.cat([heads.contiguous().view(torch.uint8), body], dim=2).flatten(1))
        at += count
    return torch.cat(found, dim=1)
