"""A matrix in blocks, its rows interleaved by sixteen as the kernels read them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from draftwood.models.backends.quantised_blocks.kinds import (
    BLOCK,
    FLOATS,
    GROUP,
    LAYOUTS,
    NONLINEAR,
    OFFSET,
    WITH_MINIMUM,
    Items,
    Kind,
    Layout,
)

SLICE = 1 << 22  # bytes that are rearranged at a time, so that they stay in the processor's cache
FIFTH = torch.arange(8, dtype=torch.uint8)[:, None]  # [v, 1]: which bit of byte k belongs to column 4v+k
SIXTH = (2 * torch.arange(4, dtype=torch.uint8))[:, None]
_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A matrix [rows, columns] in blocks."""

    data: UInt8[Tensor, "bytes"]
    rows: int
    columns: int
    kind: Kind

    @property
    def blocks(self) -> int:
        return -(-self.columns // BLOCK)

    @property
    def groups(self) -> int:
        return -(-self.rows // GROUP)

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.kind]


def interleave(rows: UInt8[Tensor, "rows bytes"], columns: int, kind: Kind) -> Packed:
    """Bytes of whole rows, whose items lie one behind the other, in groups of sixteen; rows of zeros fill the last group."""
    count, groups = len(rows), -(-len(rows) // GROUP)
    data = torch.empty(groups, GROUP * rows.shape[1], dtype=torch.uint8)
    step = max(1, SLICE // data.shape[1])
    for g in range(0, groups, step):
        part = rows[g * GROUP : (g + step) * GROUP]
        part = torch.nn.functional.pad(part, (0, 0, 0, -len(part) % GROUP)).view(-1, GROUP, rows.shape[1])
        _lay(part, data[g : g + step], LAYOUTS[kind], -(-columns // BLOCK))
    return Packed(data.flatten(), count, columns, kind)


def _lay(rows: Tensor, out: Tensor, layout: Layout, blocks: int) -> None:
    at = 0
    for chunks, each in layout.chunks(blocks):
        items: Items = layout.head + layout.block * each
        size = sum(n * width for n, width in items)
        source = rows[:, :, at : at + chunks * size].unflatten(2, (chunks, size))
        target = out[:, GROUP * at : GROUP * (at + chunks * size)].unflatten(1, (chunks, GROUP * size))
        inside = 0
        for n, width in items:
            here = source[..., inside : inside + n * width].contiguous().view(_TYPES[width])
            moved = here.permute(0, 2, 3, 1).contiguous().view(torch.uint8)
            target[:, :, GROUP * inside : GROUP * (inside + n * width)] = moved.flatten(2)
            inside += n * width
        at += chunks * size


def row_bytes(packed: Packed, first: int = 0, last: int | None = None) -> UInt8[Tensor, "rows bytes"]:
    """What `interleave` was given, of the groups [first, last): whole groups, with the rows that fill the last one."""
    layout = packed.layout
    data = packed.data.view(packed.groups, -1)[first:last]
    found: list[Tensor] = []
    at = 0
    for chunks, each in layout.chunks(packed.blocks):
        items: Items = layout.head + layout.block * each
        size = sum(n * width for n, width in items)
        source = data[:, GROUP * at : GROUP * (at + chunks * size)].unflatten(1, (chunks, GROUP * size))
        rows = torch.empty(len(data), GROUP, chunks, size, dtype=torch.uint8)
        inside = 0
        for n, width in items:
            here = source[:, :, GROUP * inside : GROUP * (inside + n * width)].contiguous().view(_TYPES[width])
            moved = here.unflatten(2, (n, GROUP)).permute(0, 3, 1, 2).flatten(1).view(torch.uint8)
            rows[..., inside : inside + n * width] = moved.view(len(data), GROUP, chunks, n * width)
            inside += n * width
        found.append(rows.flatten(2))
        at += chunks * size
    return torch.cat(found, dim=2).flatten(0, 1)


def take_rows(packed: Packed, ids: Int[Tensor, "W"]) -> Packed:
    """Some rows of the matrix, with unchanged weights."""
    groups, places = torch.unique(ids // GROUP, return_inverse=True)
    data = packed.data.view(packed.groups, -1)[groups].flatten()
    few = Packed(data, len(groups) * GROUP, packed.columns, packed.kind)
    return interleave(row_bytes(few)[places * GROUP + ids % GROUP], packed.columns, packed.kind)


def join(parts: Sequence[Packed]) -> tuple[Packed, ...]:
    """The same rows in as few parts as possible: neighbours of one kind become one matrix, where they end with a group."""
    found: list[list[Packed]] = []
    for part in parts:
        last = found[-1][-1] if found else None
        if last is not None and last.kind == part.kind and last.columns == part.columns and last.rows % GROUP == 0:
            found[-1].append(part)
        else:
            found.append([part])
    return tuple(
        each[0] if len(each) == 1 else Packed(
            torch.cat([p.data for p in each]), sum(p.rows for p in each), each[0].columns, each[0].kind
        )
        for each in found
    )  # fmt: skip


def unpack(packed: Packed) -> Float[Tensor, "rows columns"]:
    """The weights as floats."""
    return unpack_some(packed, 0, packed.rows)


def unpack_some(packed: Packed, first: int, last: int) -> Float[Tensor, "rows columns"]:
    """The weights of rows [first, last) as floats."""
    out = torch.empty(max(0, last - first), packed.columns)
    step = max(1, SLICE // (GROUP * 4 * packed.columns)) * GROUP
    for at in range(first // GROUP * GROUP, last, step):
        stop = min(at + step, last)
        rows = _decoded(row_bytes(packed, at // GROUP, -(-stop // GROUP)), packed)
        skip = max(0, first - at)
        out[at + skip - first : stop - first] = rows[skip : stop - at, : packed.columns]
    return out


def _decoded(rows: UInt8[Tensor, "R bytes"], packed: Packed) -> Float[Tensor, "R padded"]:
    layout, found, at = packed.layout, list[Tensor](), 0
    for chunks, each in layout.chunks(packed.blocks):
        size = chunks * (layout.head_bytes + each * layout.block_bytes)
        part = rows[:, at : at + size].unflatten(1, (chunks, -1))
        head = part[..., : layout.head_bytes].contiguous()
        blocks = part[..., layout.head_bytes :].unflatten(2, (each, -1)).contiguous()
        found.append(_floats(head, blocks, packed.kind).flatten(1))
        at += size
    return torch.cat(found, dim=1)


def _floats(
    head: UInt8[Tensor, "R chunks head"], blocks: UInt8[Tensor, "R chunks each bytes"], kind: Kind
) -> Float[Tensor, "R chunks each 32"]:
    if kind in FLOATS:
        return blocks.view({Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}[kind]).float()
    levels = _levels(blocks, kind)
    halves = head[..., :4].contiguous().view(torch.float16).float()
    if kind in (Kind.Q4_K, Kind.Q5_K):
        scale, minimum = (halves[..., i : i + 1] * head[..., 4 + 8 * i : 12 + 8 * i] for i in (0, 1))
    elif kind is Kind.IQ4_XS:
        scale, minimum = halves[..., :1] * head[..., 4:].view(torch.int8), None
    elif kind is Kind.Q6_K:
        scale = (halves[..., :1] * head[..., 4:].view(torch.int8)).unflatten(2, (-1, 2))
        return (scale[..., None] * levels.unflatten(3, (2, 16))).flatten(3)
    elif kind in WITH_MINIMUM:
        scale, minimum = halves[..., :1], halves[..., 1:]
    else:
        scale, minimum = halves[..., : levels.shape[2]], None
    full = scale[..., None] * levels
    return full if minimum is None else full + minimum[..., None]


def _levels(blocks: UInt8[Tensor, "R chunks each bytes"], kind: Kind) -> Float[Tensor, "R chunks each 32"]:
    if kind is Kind.Q8_0:
        return blocks.float() - OFFSET[kind]
    low = blocks[..., -16:]
    level = torch.cat([low & 15, low >> 4], dim=-1)
    if kind in (Kind.IQ4_NL, Kind.IQ4_XS):
        return torch.tensor(NONLINEAR, dtype=torch.float32)[level.long()]
    above = blocks[..., :-16]
    if kind is Kind.Q6_K:
        level |= (above.unflatten(3, (2, 1, 4)) >> SIXTH & 3).flatten(3) << 4
    elif above.shape[-1]:
        level |= (above.unsqueeze(-2) >> FIFTH & 1).flatten(3) << 4
    return level.float() - OFFSET.get(kind, 0)
