"""The int8 decoder on native kernels: batch-invariant, many layers in one call.

It runs the same passes as the float decoder: taps, parts of the layers, skipped sub-layers, attentions with shared input.
"""

import threading
from ctypes import byref, c_int32, c_uint8

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.forward import ALL, FINAL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, logit_places
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Cache
from draftwood.kernels.cpu import library as native
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.int8_native_arguments import NativePass, Rotations, Stores, logit_room, matrix, shape_of
from draftwood.models.backends.int8_weights import PRODUCTS, Int8Weights, LayerWeights
from draftwood.models.backends.kernel_sampling import Nucleus
from draftwood.models.backends.quantised_blocks import Packed, take_rows

_NO_ATTENTION, _NO_MLP, _APART = 1, 2, 4
_SUBSETS = 8  # trimmed heads kept


class NativeDecoder:
    """A whole model over int8 kernels. Threads follow torch.get_num_threads()."""

    def __init__(self, config: ModelConfig, weights: Int8Weights, library: Library) -> None:
        self.config, self.weights, self.library = config, weights, library
        self.num_layers = len(weights.layers)
        self._embedding, self._head = matrix(weights.embedding), matrix(weights.head)
        self._layers = (native.Layer * len(weights.layers))(*(native_layer(w) for w in weights.layers))
        self._shape, self.rotations, self._stores = shape_of(config), Rotations(config), Stores(len(weights.layers))
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
            batch_invariant=True,
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
        groups = sorted((r for r in layers.together if layers.start <= r.start < stop), key=lambda r: r.start)
        inside = {i for group in groups for i in group[1:]}  # no residual stands between layers that run together
        tapped = sorted(tap for tap in taps if layers.start < tap <= stop and tap not in inside)
        run = _Run(self, NativePass(x, cache, cache.stage(x), self.rotations, self._stores), layers)
        if tapped:
            features |= run.tap(tapped, h)
        at = layers.start
        for group in groups:
            run.layers(at, group.start, h)
            self._run_together(group, h, run, layers)
            at = group.stop
            if at in features:
                features[at].copy_(h)
        run.layers(at, stop, h)
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
        return ForwardOutput(
            logits, h, logit_places(want, x.size), features, tokens=x, best=best, kernels=self._kernels
        )

    def _run_together(self, group: range, h: Tensor, run: "_Run", plan: LayerPlan) -> None:
        """Layers whose attentions read the same input, then their MLPs one after another."""
        mixed = {i: torch.empty_like(h) for i in group if i not in plan.skip_attention}
        for i, apart in mixed.items():
            run.layers(i, i + 1, h, _NO_MLP | _APART, apart)
        for i in group:
            if i in mixed:
                h += mixed[i]
            if i not in plan.skip_mlp:
                run.layers(i, i + 1, h, _NO_ATTENTION)

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        flat = ids.reshape(-1).contiguous()
        out = torch.empty(flat.shape[0], self.config.hidden_size)
        if self.library.calls.draftwood_embed(byref(self._embedding), flat.data_ptr(), flat.shape[0], out.data_ptr()):
            raise IndexError(f"a token id is outside the vocabulary of {self.config.vocab_size}: {flat.tolist()[:16]}")
        return out.view(*ids.shape, self.config.hidden_size)

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


class _Run:
    """Runs parts of one pass."""

    def __init__(self, model: NativeDecoder, native_pass: NativePass, plan: LayerPlan) -> None:
        self.model, self.native_pass = model, native_pass
        self.taps, self.num_taps, self.tapped = None, 0, None
        self.skip = None
        if plan.skip_attention or plan.skip_mlp:
            self.skip = (c_uint8 * model.num_layers)()
            for i in range(model.num_layers):
                self.skip[i] = _NO_ATTENTION * (i in plan.skip_attention) | _NO_MLP * (i in plan.skip_mlp)

    def tap(self, taps: list[int], h: Float[Tensor, "T H"]) -> dict[int, Float[Tensor, "T H"]]:
        """Where the residuals after these many layers will stand."""
        self.taps, self.num_taps = (c_int32 * len(taps))(*taps), len(taps)
        room = h.new_empty(len(taps), *h.shape)
        self.tapped = room.data_ptr()
        return dict(zip(taps, room.unbind(0), strict=True))

    def layers(self, first: int, last: int, h: Tensor, flags: int = 0, apart: Tensor | None = None) -> None:
        """Layers [first, last) in place on h; `flags` replace the plan's, for a part of one layer."""
        if first >= last:
            return
        m = self.model
        skip = self.skip
        if flags:
            skip = (c_uint8 * m.num_layers)()
            skip[first] = flags
        m.library.calls.draftwood_layers(
            byref(m._shape), m._layers, first, last, skip, byref(self.native_pass.pointers), h.data_ptr(),
            None if apart is None else apart.data_ptr(), self.taps, 0 if flags else self.num_taps, self.tapped,
        )  # fmt: skip


def native_layer(w: LayerWeights) -> native.Layer:
    """The caller keeps the weights alive."""
    products = {name: matrix(w.products[name].weight, w.products[name].bias) for name in PRODUCTS}
    return native.Layer(**products, **{name: norm.data_ptr() for name, norm in w.norms.items()})
