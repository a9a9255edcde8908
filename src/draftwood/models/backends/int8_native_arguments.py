"""What the native kernels need besides weights: rotary positions, KV entries, the attention mask of a pass."""

import threading
from collections.abc import Sequence
from ctypes import POINTER, cast, pointer
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.forward import ForwardInput, Segment
from draftwood.core.protocols import Cache
from draftwood.kernels.cpu import library as native
from draftwood.models.backends.int8_weights import Product
from draftwood.models.backends.quantised_blocks import Packed
from draftwood.models.rope import angles, frequencies, length_of

_POSITIONS = 1024  # cosines are made this many at a time


def matrix(packed: Packed, bias: Tensor | None = None) -> native.Matrix:
    """The caller keeps both tensors alive."""
    return product_matrix(Product((packed,), bias))


def product_matrix(product: Product) -> native.Matrix:
    """All parts of a product. The caller keeps their tensors alive."""
    made: native.Matrix | None = None
    behind = product.rows
    for part in reversed(product.parts):
        behind -= part.rows
        bias = None if product.bias is None else product.bias.data_ptr() + behind * product.bias.itemsize
        rest = None if made is None else pointer(made)
        made = native.Matrix(part.data.data_ptr(), bias, part.rows, part.columns, part.kind, rest)
    assert made is not None
    return made


def shape_of(config: ModelConfig) -> native.Shape:
    return native.Shape(
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        inner=config.intermediate_size,
        window=config.sliding_window or 0,
        eps=config.rms_eps,
        gelu=config.activation == "gelu_tanh",
        scale=config.query_scale or 0.0,
        cap=config.attention_cap or 0.0,
    )


def logit_room(count: int, columns: int) -> Float[Tensor, "count columns"]:
    """Memory for logits. Padded, because rows a power of two apart map to the same cache lines of the processor."""
    return torch.empty(count, columns + 16)[:, :columns]


class Rotations:
    """Cosines and sines by position, computed once. Threads may share one instance."""

    def __init__(self, config: ModelConfig, *, local: bool = False) -> None:
        self._freq, self._length = frequencies(config, local=local), length_of(config, local=local)
        none = torch.zeros(0, config.head_dim // 2)
        self._made = none, none
        self._lock = threading.Lock()

    def upto(self, last: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions up to `last`, [positions, head_dim / 2] each."""
        if len(self._made[0]) <= last:
            with self._lock:
                cos, sin = self._made
                while len(cos) <= last:
                    more = angles(
                        self._freq, torch.arange(len(cos), len(cos) + _POSITIONS), torch.float32, self._length
                    )
                    half = cos.shape[1]  # the kernels take one cosine and one sine per pair
                    cos, sin = torch.cat([cos, more[0][:, 0, :half]]), torch.cat([sin, more[1][:, 0, half:]])
                self._made = cos, sin
        return self._made


class Stores:
    """Addresses of each layer's keys and values, per cache. A cache that grows replaces all its stores at once."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self._held: WeakKeyDictionary[Cache, tuple[Tensor, Any]] = WeakKeyDictionary()

    def of(self, cache: Cache) -> Any:
        """A pointer to one Store per layer."""
        first = cache.entries("k0")
        held = self._held.get(cache)
        if held is None or held[0] is not first:
            each = [(cache.entries(f"k{i}"), cache.entries(f"v{i}")) for i in range(self.layers)]
            layers = [(keys.data_ptr(), values.data_ptr()) for keys, values in each]
            held = first, cast((native.Store * len(layers))(*layers), POINTER(native.Store))
            self._held[cache] = held
        return held[1]


class NativePass:
    """One pass as the kernels read it: `pointers`. Keeps every tensor alive that they point to."""

    def __init__(
        self,
        x: ForwardInput,
        cache: Cache,
        segments: Sequence[Segment],
        rotations: Rotations,
        stores: Stores,
        local: Rotations | None = None,
    ) -> None:
        store = cache.entries("k0")
        cos, sin = rotations.upto(int(x.positions.max()) if x.size else 0)
        own = (None, None) if local is None else local.upto(int(x.positions.max()) if x.size else 0)
        self.kept = [x.positions.contiguous(), x.entries.contiguous(), cos, sin, store]
        self.parts = (native.Segment * len(segments))()
        self.kept += [table for table in own if table is not None]
        for part, s in zip(self.parts, segments, strict=True):
            part.start, part.stop = s.start, s.stop
            part.committed, part.staged = s.committed, s.staged
            part.slot, part.blocks = cache.place(s.slot)
            if s.visible is not None:
                visible = s.visible.contiguous()
                self.kept.append(visible)
                part.visible = visible.data_ptr()
        stride = store.stride(0) if store.dim() == 4 else native.BLOCK_ENTRIES * store.stride(1)
        self.pointers = native.Pass(
            tokens=x.size,
            segments=len(segments),
            segment=self.parts,
            cache=native.CacheLayout(stride, store.stride(-3), self.kept[1].data_ptr()),
            stores=stores.of(cache),
            positions=self.kept[0].data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            **{
                name: table.data_ptr()
                for name, table in zip(("local_cos", "local_sin"), own, strict=True)
                if table is not None
            },
        )
