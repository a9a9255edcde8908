"""A pass as transformers takes it: rectangles of padded segments, and a cache that reads and writes our own.

slot 3   a b c         one Pack of width 3: three segments, two of them padded, over a context as long as the
slot 5   d . .         longest. The segments decide what is written and what is visible, so commit, prefix
slot 7   e f .         sharing and freeing stay in our cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from draftwood.core.forward import ForwardInput, Segment
from draftwood.core.protocols import Cache
from draftwood.errors import ModelError
from draftwood.models.attention import visible_masks

try:
    from transformers.cache_utils import Cache as TransformersCache
    from transformers.cache_utils import CacheLayerMixin
except ImportError as missing:
    text = "hf: models are run by transformers, which is not installed\nhint: pip install draftwood[hf]"
    raise ModelError(text) from missing


@dataclass(frozen=True)
class Pack:
    """Some segments of a pass as one rectangle of S x width tokens over `context` KV entries."""

    segments: tuple[Segment, ...]
    x: ForwardInput

    @cached_property
    def sizes(self) -> list[int]:
        return [s.stop - s.start for s in self.segments]

    @cached_property
    def width(self) -> int:
        return max(self.sizes)

    @cached_property
    def context(self) -> int:
        return max(s.committed + s.staged for s in self.segments)

    def spread(self, flat: Shaped[Tensor, "T *more"], fill: int = 0) -> Shaped[Tensor, "S width *more"]:
        """A tensor with one item per token of the pass, as a rectangle."""
        out = flat.new_full((len(self.segments), self.width, *flat.shape[1:]), fill)
        for i, s in enumerate(self.segments):
            out[i, : self.sizes[i]] = flat[s.start : s.stop]
        return out

    def collect(self, padded: Shaped[Tensor, "S width *more"], flat: Shaped[Tensor, "T *more"]) -> None:
        """Back from the rectangle into the pass."""
        for i, s in enumerate(self.segments):
            flat[s.start : s.stop] = padded[i, : self.sizes[i]]

    def mask(self, dtype: torch.dtype, window: int | None) -> Float[Tensor, "S 1 width context"]:
        """Additive. Padded tokens attend to everything, because the softmax of a fully masked token would be NaN."""
        closed = torch.finfo(dtype).min  # what transformers uses; exactly zero after the softmax, like -inf
        out = torch.full(
            (len(self.segments), 1, self.width, self.context), closed, dtype=dtype, device=self.x.ids.device
        )
        masks = visible_masks(self.segments, self.x, dtype, window)
        for i, (s, mask) in enumerate(zip(self.segments, masks, strict=True)):
            out[i, 0, : self.sizes[i], : s.committed + s.staged] = 0 if mask is None else mask.clamp_min(closed)
            out[i, 0, self.sizes[i] :] = 0
        return out

    def write(self, store: Tensor, new: Float[Tensor, "S heads width d"]) -> None:
        """Write each new entry to its place behind the slot's committed entries."""
        for i, s in enumerate(self.segments):
            entries = s.committed + self.x.entries[s.start : s.stop]
            store[s.slot, :, entries] = new[i, :, : self.sizes[i]].to(store.dtype)

    def read(self, store: Tensor) -> Float[Tensor, "S heads context d"]:
        """Committed and staged entries, zeros behind them: old entries of another sequence may hold any value, even NaN."""
        if len(self.segments) == 1:
            return store[self.segments[0].slot, None, :, : self.context]
        out = store.new_empty(len(self.segments), store.shape[1], self.context, store.shape[3])
        for i, s in enumerate(self.segments):
            size = s.committed + s.staged
            out[i, :, :size] = store[s.slot, :, :size]
            out[i, :, size:] = 0
        return out


def packs(segments: Sequence[Segment], x: ForwardInput) -> list[Pack]:
    """All segments in as few rectangles as keep the padding below half: a prompt chunk never pads a decode step."""
    groups: list[list[Segment]] = []
    widest = 0
    for s in sorted(segments, key=lambda s: s.start - s.stop):
        size = s.stop - s.start
        if not groups or 2 * size <= widest:
            groups.append([])
            widest = size
        groups[-1].append(s)
    return [Pack(tuple(group), x) for group in groups]


class PackLayer(CacheLayerMixin):
    """One layer's keys and values for one pack: `update` writes new entries to our stores and returns the pack's context."""

    is_sliding = False

    def __init__(self, pack: Pack, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.pack, self.stores = pack, (keys, values)
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the stores exist."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        for store, new in zip(self.stores, (key_states, value_states), strict=True):
            self.pack.write(store, new)
        self.keys, self.values = (self.pack.read(store) for store in self.stores)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.pack.context, 0

    def get_seq_length(self) -> int:
        return self.pack.context - self.pack.width

    def get_max_length(self) -> int:
        return -1


def transformers_cache(pack: Pack, cache: Cache, num_layers: int) -> TransformersCache:
    """Our cache behind the interface of transformers, for one call."""
    return TransformersCache(
        layers=[PackLayer(pack, cache.store(f"k{i}"), cache.store(f"v{i}")) for i in range(num_layers)]
    )


Windows = Mapping[str, int | None]
"""Kind of layer -> its attention window, None for full attention. A model without kinds has one named \"\"."""


def tree_mask(pack: Pack, dtype: torch.dtype, windows: Windows) -> Tensor | dict[str, Tensor]:
    """One mask for all layers, or one for each kind of layer."""
    masks = {kind: pack.mask(dtype, window) for kind, window in windows.items()}
    return masks if len(masks) > 1 else next(iter(masks.values()))
