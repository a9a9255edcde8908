"""The int8 decoder on native kernels: whole stretches of layers in one call, bit-identical for a row whatever runs with it.

The same passes as the reference decoder: taps, parts of the layers, skipped sub-layers, attentions that read together.
"""

import threading
from ctypes import POINTER, byref, c_uint8, cast, pointer
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.passes import ALL, FINAL, LayerPlan, RowSpec, Seen, Segment, Tokens, logit_places
from draftwood.core.protocols import Cache
from draftwood.kernels.cpu import library as native
from draftwood.kernels.cpu.library import Library
from draftwood.models.lanes.blocks import Packed, take_rows
from draftwood.models.lanes.int8 import PRODUCTS, Int8Weights, LayerWeights, Product
from draftwood.models.rope import angles, frequencies

_NO_ATTENTION, _NO_MLP, _APART = 1, 2, 4
_POSITIONS = 1024  # cosines are made this many at a time
_SUBSETS = 8  # trimmed heads remembered


class NativeDecoder:
    """A whole model over int8 kernels. Threads follow torch.get_num_threads()."""

    row_exact = True
    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, config: ModelConfig, weights: Int8Weights, library: Library) -> None:
        self.config, self.weights, self.library = config, weights, library
        self._embedding, self._head = _matrix(weights.embedding), _matrix(weights.head)
        self._layers = (native.Layer * len(weights.layers))(*(_layer(w) for w in weights.layers))
        self._shape = native.Shape(
            hidden=config.hidden_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            inner=config.intermediate_size,
            window=config.sliding_window or 0,
            eps=config.rms_eps,
        )
        self._freq = frequencies(config)
        none = torch.zeros(0, config.head_dim // 2)
        self._turns = none, none
        self._growing = threading.Lock()  # engines of several threads share one model
        self._stores: WeakKeyDictionary[Cache, tuple[Tensor, object]] = WeakKeyDictionary()
        self._subsets: dict[bytes, tuple[Packed, native.Matrix]] = {}

    @property
    def lane(self) -> str:
        return f"int8 {self.library.level}"

    @property
    def vocab(self) -> int:
        return self.config.vocab_size

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def max_positions(self) -> int:
        return self.config.max_positions

    @property
    def row_specs(self) -> tuple[RowSpec, ...]:
        c = self.config
        return tuple(
            RowSpec(f"{kind}{i}", c.num_kv_heads, c.head_dim, torch.float16)
            for i in range(self.num_layers)
            for kind in "kv"
        )

    def first_layers(self, count: int) -> "NativeDecoder":
        """A shallow model that shares this one's weights: the first layers, then the same norm and head."""
        w = self.weights
        return NativeDecoder(self.config, Int8Weights(w.embedding, w.head, w.norm, w.layers[:count]), self.library)

    @torch.inference_mode()
    def forward(self, x: Tokens, cache: Cache, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> Seen:
        """One pass over T tokens; logits only where wanted, and only when the last layer is reached."""
        self.library.threads(torch.get_num_threads())
        stop = self.num_layers if layers.stop is None else layers.stop
        h = self.embed(x.ids) if x.hidden is None else x.hidden.float().clone(memory_format=torch.contiguous_format)
        features: dict[int, Tensor] = {layers.start: h.clone()} if layers.start in taps else {}
        what = _Pass(self, x, cache, cache.stage(x), layers)
        together = {r.start: r for r in layers.together}
        cuts = sorted({stop, *taps, *together} & set(range(layers.start + 1, stop + 1)))
        at = layers.start
        while at < stop:
            if at in together:
                self._together(together[at], h, what, layers)
                at = together[at].stop
            else:
                upto = next(c for c in cuts if c > at)
                what.run(at, upto, h)
                at = upto
            if at in taps:
                features[at] = h.clone()
        if FINAL in taps:
            features[FINAL] = self._final(h)
        if stop < self.num_layers or not len(x.want):
            return Seen(h.new_zeros(0, self.vocab), h, logit_places(x.want, x.size), features, tokens=x)
        logits = _apart(len(x.want), self._head.rows)  # a draft's head may know less than the vocabulary
        best = torch.empty(len(x.want), dtype=torch.int64)
        want = x.want.contiguous()
        self.library.calls.draftwood_head(
            byref(self._head), self.weights.norm.data_ptr(), self.config.rms_eps, h.data_ptr(), want.data_ptr(),
            len(want), logits.data_ptr(), logits.stride(0), best.data_ptr(),
        )  # fmt: skip
        return Seen(logits, h, logit_places(want, x.size), features, tokens=x, best=best)

    def _together(self, group: range, h: Tensor, what: "_Pass", plan: LayerPlan) -> None:
        """Layers whose attentions read the same input, then their MLPs one after another."""
        mixed = {i: torch.empty_like(h) for i in group if i not in plan.skip_attention}
        for i, apart in mixed.items():
            what.run(i, i + 1, h, _NO_MLP | _APART, apart)
        for i in group:
            if i in mixed:
                h += mixed[i]
            if i not in plan.skip_mlp:
                what.run(i, i + 1, h, _NO_ATTENTION)

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        flat = ids.reshape(-1).contiguous()
        out = torch.empty(len(flat), self.config.hidden_size)
        if self.library.calls.draftwood_embed(byref(self._embedding), flat.data_ptr(), len(flat), out.data_ptr()):
            raise IndexError(f"a token id is outside the vocabulary of {self.vocab}: {flat.tolist()[:16]}")
        return out.view(*ids.shape, self.config.hidden_size)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        """Logits, or only the rows `ids` of the LM head."""
        if ids is not None and not len(ids):
            return hidden.new_zeros(*hidden.shape[:-1], 0)
        self.library.threads(torch.get_num_threads())
        kept, matrix = (None, self._head) if ids is None else self._subset(ids)
        h = hidden.reshape(-1, hidden.shape[-1]).float().contiguous()
        out = _apart(len(h), matrix.rows)
        self.library.calls.draftwood_head(
            byref(matrix), self.weights.norm.data_ptr() if norm else None, self.config.rms_eps, h.data_ptr(), None,
            len(h), out.data_ptr(), out.stride(0), None,
        )  # fmt: skip
        del kept  # the subset's bytes were needed until here
        return out.view(*hidden.shape[:-1], matrix.rows)

    def _subset(self, ids: Tensor) -> tuple[Packed, native.Matrix]:
        """Rows of the head packed on their own; a trimmed vocabulary stays the same from call to call."""
        key = ids.cpu().contiguous().numpy().tobytes()
        found = self._subsets.get(key)
        if found is None:
            packed = take_rows(self.weights.head, ids.cpu())
            found = packed, _matrix(packed)
            with self._growing:
                if len(self._subsets) >= _SUBSETS:
                    self._subsets.pop(next(iter(self._subsets)), None)
                self._subsets[key] = found
        return found

    def _final(self, h: Float[Tensor, "T H"]) -> Float[Tensor, "T H"]:
        out = torch.empty_like(h)
        calls, norm = self.library.calls, self.weights.norm
        calls.draftwood_norm(h.data_ptr(), norm.data_ptr(), self.config.rms_eps, *h.shape, out.data_ptr())
        return out

    def turns(self, last: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions up to `last`; once made they never change."""
        if len(self._turns[0]) <= last:
            with self._growing:
                cos, sin = self._turns
                while len(cos) <= last:
                    more = angles(self._freq, torch.arange(len(cos), len(cos) + _POSITIONS), torch.float32)
                    cos, sin = torch.cat([cos, more[0][:, 0]]), torch.cat([sin, more[1][:, 0]])
                self._turns = cos, sin
        return self._turns

    def stores(self, cache: Cache) -> object:
        """Where the cache's rows lie. A cache that grows replaces all its stores at once."""
        first = cache.store("k0")
        held = self._stores.get(cache)
        if held is None or held[0] is not first:
            rows = [(cache.store(f"k{i}").data_ptr(), cache.store(f"v{i}").data_ptr()) for i in range(self.num_layers)]
            held = first, (native.Store * len(rows))(*rows)
            self._stores[cache] = held
        return held[1]


class _Pass:
    """One pass as the kernels want it. Holds on to every tensor whose address it gave away."""

    def __init__(self, model: NativeDecoder, x: Tokens, cache: Cache, segments: list[Segment], plan: LayerPlan) -> None:
        self.model = model
        store = cache.store("k0")
        cos, sin = model.turns(int(x.positions.max()) if x.size else 0)
        self.kept = [x.positions.contiguous(), x.rows.contiguous(), cos, sin, store]
        self.parts = (native.Segment * len(segments))()
        for part, s in zip(self.parts, segments, strict=True):
            part.slot, part.start, part.stop, part.committed, part.staged = (
                s.slot,
                s.start,
                s.stop,
                s.committed,
                s.staged,
            )
            if s.visible is not None:
                visible = s.visible.contiguous()
                self.kept.append(visible)
                part.visible = visible.data_ptr()
        self.what = native.Pass(
            tokens=x.size,
            segments=len(segments),
            segment=cast(self.parts, POINTER(native.Segment)),
            cache=native.Rows(store.stride(0), store.stride(1), self.kept[1].data_ptr()),
            stores=cast(model.stores(cache), POINTER(native.Store)),  # type: ignore[arg-type]
            positions=self.kept[0].data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
        )
        self.skip = None
        if plan.skip_attention or plan.skip_mlp:
            self.skip = (c_uint8 * model.num_layers)()
            for i in range(model.num_layers):
                self.skip[i] = _NO_ATTENTION * (i in plan.skip_attention) | _NO_MLP * (i in plan.skip_mlp)

    def run(self, first: int, last: int, h: Tensor, flags: int = 0, apart: Tensor | None = None) -> None:
        """Layers [first, last) in place on h; `flags` instead of the plan's for a part of one layer."""
        m = self.model
        skip = self.skip
        if flags:
            skip = (c_uint8 * m.num_layers)()
            skip[first] = flags
        m.library.calls.draftwood_layers(
            byref(m._shape), m._layers, first, last, skip, pointer(self.what), h.data_ptr(),
            None if apart is None else apart.data_ptr(),
        )  # fmt: skip


def _apart(rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Room for logits. Rows a power of two apart would fight for the same lines of the cache."""
    return torch.empty(rows, columns + 16)[:, :columns]


def _matrix(packed: Packed, bias: Tensor | None = None) -> native.Matrix:
    return native.Matrix(
        packed.data.data_ptr(), None if bias is None else bias.data_ptr(), packed.rows, packed.columns, packed.kind
    )


def _layer(w: LayerWeights) -> native.Layer:
    products = {name: _of(w.products[name]) for name in PRODUCTS}
    return native.Layer(**products, **{name: norm.data_ptr() for name, norm in w.norms.items()})


def _of(product: Product) -> native.Matrix:
    return _matrix(product.weight, product.bias)
