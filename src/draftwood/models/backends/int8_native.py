"""The int8 decoder on native kernels: batch-invariant, many layers in one call.

It runs the same passes as the float decoder: taps, parts of the layers, skipped sub-layers, attentions with shared input.
"""

import threading
from ctypes import Array, byref, c_int32, c_uint8

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.forward import ALL, FINAL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, logit_places
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Cache
from draftwood.kernels.cpu import library as native
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.int8_native_arguments import (
    NativePass,
    Rotations,
    Stores,
    logit_room,
    matrix,
    product_matrix,
    shape_of,
)
from draftwood.models.backends.int8_weights import Int8Weights, LayerWeights
from draftwood.models.backends.kernel_sampling import Nucleus
from draftwood.models.backends.quantised_blocks import Packed, take_rows

_NO_ATTENTION, _NO_MLP = 1, 2
_SUBSETS = 8  # trimmed heads kept


class NativeDecoder:
    """A whole model over int8 kernels. Threads follow torch.get_num_threads()."""

    def __init__(self, config: ModelConfig, weights: Int8Weights, library: Library) -> None:
        self.config, self.weights, self.library = config, weights, library
        self.num_layers = len(weights.layers)
        self._embedding, self._head = matrix(weights.embedding), matrix(weights.head)
        self._layers = (native.Layer * len(weights.layers))(
            *(native_layer(w, config, i) for i, w in enumerate(weights.layers))
        )
        self._shape, self.rotations, self._stores = shape_of(config), Rotations(config), Stores(len(weights.layers))
        self._local = Rotations(config, local=True) if config.local_rope_theta is not None else None
        self._lock = threading.Lock()  # engines of several threads share one model
        self._kernels = Nucleus(library)
        self._subsets: dict[bytes, tuple[Packed, native.Matrix]] = {}

    @property
    def info(self) -> ModelInfo:
        c = self.config
        return ModelInfo(
            vocab_size=c.vocab_size,
            num_layers=self.num_layers,
            hidden_size=c.hidden_size,
            max_positions=c.max_positions,
            backend=f"int8 {self.library.level}",
            weights=self.weights.block_types,
            batch_invariant=True,
            reads_blocks=True,
            config=c,
        )

    @property
    def cache_specs(self) -> tuple[CacheSpec, ...]:
        c = self.config
        return tuple(
            CacheSpec(f"{kind}{i}", c.num_kv_heads, c.head_dim, torch.float16)
            for i in range(self.num_layers)
            for kind in "kv"
        )

    def first_layers(self, count: int) -> "NativeDecoder":
        """A shallow model that shares this one's weights: the first layers, then the same norm and head."""
        w = self.weights
        return NativeDecoder(self.config, Int8Weights(w.embedding, w.head, w.norm, w.layers[:count]), self.library)

    @torch.inference_mode()
    def forward(
        self, x: ForwardInput, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL
    ) -> ForwardOutput:
        """One pass over T tokens; logits only where wanted, and only when the last layer is reached."""
        self.library.threads(torch.get_num_threads())
        stop = self.num_layers if layers.stop is None else layers.stop
        h = self.embed(x.ids) if x.hidden is None else x.hidden.float().clone(memory_format=torch.contiguous_format)
        features: dict[int, Tensor] = {layers.start: h.clone()} if layers.start in taps else {}
        groups = layers.groups(self.num_layers) if layers.together else []
        inside = {i for group in groups for i in group[1:]}  # no residual stands between layers that run together
        tapped = sorted(tap for tap in taps if layers.start < tap <= stop and tap not in inside)
        room = apart = None
        if tapped:
            room = h.new_empty(len(tapped), *h.shape)
            features |= dict(zip(tapped, room.unbind(0), strict=True))
        if groups:  # what their attentions add to the residual
            apart = h.new_empty(max(map(len, groups)), *h.shape)
        passed = NativePass(x, cache, cache.stage(x), self.rotations, self._stores, self._local)
        self.library.calls.draftwood_layers(
            byref(self._shape), self._layers, layers.start, stop, self._skipped(layers), self._ends(groups),
            byref(passed.pointers), h.data_ptr(), None if apart is None else apart.data_ptr(),
            (c_int32 * len(tapped))(*tapped), len(tapped), None if room is None else room.data_ptr(),
        )  # fmt: skip
        if FINAL in taps:
            features[FINAL] = self._final(h)
        if stop < self.num_layers or not x.want.shape[0]:
            return ForwardOutput(
                h.new_zeros(0, self.config.vocab_size), h, logit_places(x.want, x.size), features, tokens=x
            )
        want = x.want.contiguous()
        count = want.shape[0]  # len() of a tensor takes ten times as long
        logits = logit_room(count, self._head.rows)  # a draft's head may be trimmed to a part of the vocabulary
        best = torch.empty(count, dtype=torch.int64)
        self.library.calls.draftwood_head(
            byref(self._head), self.weights.norm.data_ptr(), self.config.rms_eps, h.data_ptr(), want.data_ptr(),
            count, logits.data_ptr(), logits.stride(0), best.data_ptr(),
        )  # fmt: skip
        self._bend(logits)
        return ForwardOutput(
            logits, h, logit_places(want, x.size), features, tokens=x, best=best, kernels=self._kernels
        )

    def _skipped(self, plan: LayerPlan) -> Array[c_uint8] | None:
        """What each layer leaves out."""
        if not (plan.skip_attention or plan.skip_mlp):
            return None
        flags = (c_uint8 * self.num_layers)()
        for i in range(self.num_layers):
            flags[i] = _NO_ATTENTION * (i in plan.skip_attention) | _NO_MLP * (i in plan.skip_mlp)
        return flags

    def _ends(self, groups: list[range]) -> Array[c_int32] | None:
        """Where the group that begins at each layer ends."""
        if not groups:
            return None
        ends = (c_int32 * self.num_layers)()
        for group in groups:
            ends[group.start] = group.stop
        return ends

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        flat = ids.reshape(-1).contiguous()
        out = torch.empty(flat.shape[0], self.config.hidden_size)
        if self.library.calls.draftwood_embed(byref(self._embedding), flat.data_ptr(), flat.shape[0], out.data_ptr()):
            raise IndexError(f"a token id is outside the vocabulary of {self.config.vocab_size}: {flat.tolist()[:16]}")
        scale = self.config.embedding_scale
        return (out if scale == 1.0 else out.mul_(scale)).view(*ids.shape, self.config.hidden_size)

    def _bend(self, logits: Float[Tensor, "U V"]) -> None:
        """Logits stay below the cap of the model, if it has one; which is the greatest does not change."""
        cap = self.config.logit_cap
        if cap is not None:
            self.library.calls.draftwood_cap(logits.data_ptr(), logits.stride(0), *logits.shape, cap)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        """Logits, or only the rows `ids` of the LM head."""
        if ids is not None and not len(ids):
            return hidden.new_zeros(*hidden.shape[:-1], 0)
        self.library.threads(torch.get_num_threads())
        packed, head = (None, self._head) if ids is None else self.subset(ids)
        h = hidden.reshape(-1, hidden.shape[-1]).float().contiguous()
        out = logit_room(len(h), head.rows)
        self.library.calls.draftwood_head(
            byref(head), self.weights.norm.data_ptr() if norm else None, self.config.rms_eps, h.data_ptr(), None,
            len(h), out.data_ptr(), out.stride(0), None,
        )  # fmt: skip
        self._bend(out)
        del packed  # holds the bytes that `head` points to
        return out.view(*hidden.shape[:-1], head.rows)

    def subset(self, ids: Tensor) -> tuple[Packed, native.Matrix]:
        """Some LM-head rows as a matrix of their own; kept, because a trimmed vocabulary rarely changes."""
        key = ids.cpu().contiguous().numpy().tobytes()
        found = self._subsets.get(key)
        if found is None:
            packed = take_rows(self.weights.head, ids.cpu())
            found = packed, matrix(packed)
            with self._lock:
                if len(self._subsets) >= _SUBSETS:
                    self._subsets.pop(next(iter(self._subsets)), None)
                self._subsets[key] = found
        return found

    def _final(self, h: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
        out = torch.empty_like(h)
        calls, norm = self.library.calls, self.weights.norm
        calls.draftwood_norm(h.data_ptr(), norm.data_ptr(), self.config.rms_eps, *h.shape, out.data_ptr())
        return out


def native_layer(w: LayerWeights, config: ModelConfig | None = None, index: int = 0) -> native.Layer:
    """The caller keeps the weights alive. `config`: of a model whose layers differ; `index`: which of them it is."""
    products = {name: product_matrix(each) for name, each in w.products.items()}
    norms = {name: norm.data_ptr() for name, norm in w.norms.items()}
    own = {} if config is None else {"window": config.window(index) or -1, "local": config.is_local(index)}
    return native.Layer(**products, **norms, **own)
