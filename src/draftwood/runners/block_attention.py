"""BlockAttention: attention over a cache in blocks by our kernels, for layers whose products stay torch's, such as those of
draft heads. What `Attention` computes by a mask in some thirty operations a pass is one kernel here, and a layer is two."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.cache.paged import BLOCK, PagedCache
from draftwood.core.forward import CacheSpec
from draftwood.kernels.gpu.arguments import STORED_WORDS, Heads
from draftwood.kernels.gpu.twins import Twins
from draftwood.runners.rectangles import Buffers

ANY_POSITION = 2**30


class BlockAttention:
    """Of all layers of one pass."""

    def __init__(self, buffers: Buffers, cache: PagedCache, num_heads: int) -> None:
        pair = cache.pair(0)
        self.heads = Heads(num_heads, pair.shape[2], pair.shape[4], BLOCK)
        self.size, self.cache, self.operations = buffers.size, cache, cache.operations
        slots, done, first, _, count = buffers.meta
        index = torch.arange(self.size.width, device=slots.device)
        place = done[:, None] + first[:, None] + index
        written = torch.where(index < count[:, None], place.clamp_max(cache.room), cache.room)
        self._places = cache.places(slots[:, None].expand_as(place), written)
        self._at = self.operations.placement(
            buffers.meta,
            buffers.parents,
            buffers.positions,
            cache.table,
            cache.trees,
            room=cache.room,
            words=-(-max(self.size.nodes, 1) // 64),
            most_position=ANY_POSITION,
            heads=self.heads,
        )

    def __call__(
        self, index: int, q: Float[Tensor, "T heads d"], k: Float[Tensor, "T kv d"], v: Float[Tensor, "T kv d"]
    ) -> Float[Tensor, "T heads*d"]:
        """Write the new entries of one layer, then attend."""
        pair = self.cache.pair(index)
        pair.view(-1, q.shape[-1]).index_copy_(0, self._places, torch.cat([k, v], dim=1).view(-1, q.shape[-1]))
        return self.operations.attended(
            q.reshape(len(q), -1), pair[0], pair[1], self.cache.table, self._at, self.heads, self.size.context
        )


def trusted(
    operations: Twins | None,
    specs: tuple[CacheSpec, ...],
    num_heads: int,
    device: torch.device,
    failed: Callable[[str], None],
) -> Twins | None:
    """The operations, if their attention agrees with its twin for these heads on the device. `failed` is told why not."""
    if operations is None:
        return None
    try:
        error = _error(operations, specs[0], num_heads, device)
    except Exception as problem:  # a compiler's, a driver's or a kernel's: stock operations run then
        failed(f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}")
        return None
    if not error < 0.02:
        failed(f"wrong by {error:.2g}")
        return None
    return operations


def _error(operations: Twins, spec: CacheSpec, num_heads: int, device: torch.device) -> float:
    """The greatest difference, relative to the greatest number, of a chain of single tokens and of a tree."""
    heads = Heads(num_heads, spec.heads, spec.width, BLOCK)
    noise = torch.Generator().manual_seed(0)
    table = torch.arange(1, 17, dtype=torch.int32, device=device).view(2, 8)
    shape = (17, spec.heads, BLOCK, spec.width)
    keys, values = (torch.randn(shape, generator=noise).to(device, spec.dtype) for _ in range(2))
    worst = 0.0
    for width, counts in ((1, (1, 1)), (8, (8, 5))):
        meta = torch.tensor([[0, 1], [70, 33], [0, 0], [1, 1], counts], device=device)
        parents = torch.tensor([[-1, 0, 0, 1, 1, 2, 4, 3][:width]] * 2, device=device)
        q = torch.randn(2 * width, num_heads * spec.width, generator=noise).to(device, spec.dtype)
        found: list[Tensor] = []
        for each in (operations, Twins()):
            trees = torch.zeros(2, 1024, STORED_WORDS, dtype=torch.int64, device=device)
            given: dict[str, Any] = {"room": 128, "words": 1, "most_position": ANY_POSITION, "heads": heads}
            at = each.placement(meta, parents, parents, table, trees, **given)
            mixed = each.attended(q, keys, values, table, at, heads, 128)
            found.append(torch.cat([mixed[: counts[0]], mixed[width : width + counts[1]]]).float())
        worst = max(worst, float((found[0] - found[1]).abs().max() / found[1].abs().max()))
    return worst
