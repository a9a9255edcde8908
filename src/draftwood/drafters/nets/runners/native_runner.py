"""A net on features beside an int8 target: the same kernels, one call per draft pass.

Blocks of a head's file are the blocks that the kernels multiply, so packing them again changes no weight.
"""

from collections.abc import Mapping, Sequence
from ctypes import byref, c_float
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.block_cache import BlockCache
from draftwood.cache.dense import DenseCache
from draftwood.core.forward import ForwardInput
from draftwood.drafters.nets.files.refresh import check
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.runners.runner import cache_specs, places
from draftwood.errors import DrafterError, OutOfBlocks
from draftwood.kernels.cpu import library as native
from draftwood.models.backends.int8_native import NativeDecoder, native_layer
from draftwood.models.backends.int8_native_arguments import (
    NativePass,
    Rotations,
    Stores,
    logit_room,
    matrix,
    product_matrix,
    shape_of,
)
from draftwood.models.backends.int8_weights import NORMS, PRODUCTS, LayerWeights, Product
from draftwood.models.backends.quantised_blocks import Packed, pack, take_rows
from draftwood.runners.with_cache import WithCache
from draftwood.trees.grow import NO_NUMBERS

NO_DISTRIBUTION = 2  # returned by the kernels


class Int8Runner(WithCache):
    """A head on features, or a net behind an early exit, over int8 kernels; a token has the same bits whatever runs with
    it."""

    def __init__(
        self, head: Head, target: NativeDecoder, cache: DenseCache | None = None, weights: "_Weights | None" = None
    ) -> None:
        super().__init__(cache)
        c = head.config.layer
        self.max_positions = target.config.max_positions
        self.head, self.target, self.taps = head, target, head.config.taps
        self._weights = _Weights(head, target) if weights is None else weights
        self.cache_specs = cache_specs(c, self._weights.layers, torch.float16)
        self.ids = None if head.ids is None else head.ids.cpu().contiguous()
        self._shape, self._rotations, self._stores = shape_of(c), Rotations(c), Stores(self._weights.layers)
        # The trimmed rows asked for last, and the version of the weights that they were taken from.
        self._only: tuple[Tensor, int, native.Reader, Packed] | None = None

    def open(self, slots: int, capacity: int) -> "Int8Runner":
        cache = BlockCache(self.cache_specs, slots=slots, capacity=capacity)
        return Int8Runner(self.head, self.target, cache, self._weights)

    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        self._weights.refresh(weights)

    def fuse(self, features: Sequence[Float[Tensor, "T H"]]) -> Float[Tensor, "T d"]:
        w = self._weights
        if w.fuse is None:
            return features[0]
        library, eps = self.target.library, self.head.config.layer.rms_eps
        library.threads(torch.get_num_threads())
        if w.feature_norms:
            features = [self._normed(x, norm, eps) for x, norm in zip(features, w.feature_norms, strict=True)]
        wide = torch.cat(list(features), dim=-1)
        if w.fused_norm is not None:
            wide = self._normed(wide, w.fused_norm, eps)
        out = torch.empty(len(wide), w.fuse.rows)
        library.calls.draftwood_product(byref(w.fuse), wide.data_ptr(), len(wide), out.data_ptr())
        return out

    def _normed(self, x: Float[Tensor, "T H"], weight: Float[Tensor, "H"], eps: float) -> Float[Tensor, "T H"]:
        x = x.contiguous()
        out = torch.empty_like(x)
        self.target.library.calls.draftwood_norm(x.data_ptr(), weight.data_ptr(), eps, *x.shape, out.data_ptr())
        return out

    def execute(
        self, x: ForwardInput, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        assert x.hidden is not None
        library, reader = self.target.library, self._weights.reader if only is None else self._trimmed(only)
        library.threads(torch.get_num_threads())
        cache = self.cache
        native_pass = NativePass(x, cache, cache.stage(x), self._rotations, self._stores)
        ids, hidden, want = x.ids.contiguous(), x.hidden.contiguous(), x.want.contiguous()
        out = torch.empty_like(hidden)
        logits = logit_room(len(want), reader.head.rows)
        outside = library.calls.draftwood_features(
            byref(self._shape), byref(reader), byref(native_pass.pointers), ids.data_ptr(), hidden.data_ptr(),
            out.data_ptr(), want.data_ptr(), len(want), logits.data_ptr(), logits.stride(0),
        )  # fmt: skip
        self._check(outside, ids)
        return out, logits

    def best_chains(
        self,
        x: ForwardInput,
        temperature: list[float],
        steps: int,
        only: Int[Tensor, "W"] | None = None,
        least: float = 0.0,
        k: int = 1,
    ) -> tuple[Int[Tensor, "B steps k"], Float[Tensor, "B steps k"]] | None:
        """Of one text; None for several, if the cache has no room for them, or if tokens do not read what the net
        puts out for those before them."""
        begun = self._one_text(x, steps, only) if len(temperature) == 1 else None
        if begun is None:
            return None
        reader, words, arguments, held = begun
        k = min(k, reader.head.rows)
        prob, tokens = torch.empty(1, steps, k), torch.empty(1, steps, k, dtype=torch.int64)
        outside = self.target.library.calls.draftwood_line(
            *arguments, temperature[0], words, steps, k, least, prob.data_ptr(), tokens.data_ptr()
        )
        self._check(outside, held[0])
        return tokens, prob

    def drawn_chain(
        self, x: ForwardInput, temperature: float, u: Float[Tensor, "steps 3"], only: Int[Tensor, "W"] | None = None
    ) -> tuple[Int[Tensor, "steps"], Float[Tensor, "steps W"]] | None:
        begun = self._one_text(x, len(u), only)
        if begun is None:
            return None
        reader, words, arguments, held = begun
        uniforms, steps = u.contiguous(), len(u)
        q, drawn = torch.empty(steps, reader.head.rows), torch.empty(2, steps, dtype=torch.int64)
        said = self.target.library.calls.draftwood_drawn_line(
            *arguments, temperature, words, steps, uniforms.data_ptr(), q.data_ptr(), drawn[0].data_ptr(),
            drawn[1].data_ptr(),
        )  # fmt: skip
        if said == NO_DISTRIBUTION:
            raise DrafterError(NO_NUMBERS)
        self._check(said, held[0])
        return drawn[0], q

    def shares(self, logits: Float[Tensor, "U W"], temperature: list[float]) -> Float[Tensor, "U W"]:
        rows, columns = logits.shape
        q = torch.empty(rows, columns)
        self.target.library.calls.draftwood_shares(
            logits.data_ptr(), logits.stride(0), rows, columns, (c_float * rows)(*temperature), q.data_ptr()
        )
        return q

    def _one_text(
        self, x: ForwardInput, steps: int, only: Int[Tensor, "W"] | None
    ) -> tuple[native.Reader, int | None, tuple[Any, ...], tuple[Any, ...]] | None:
        """What a line of `steps` tokens behind one text begins with: the head, its tokens' address, the arguments of the
        call, and what must be held while it runs. None as in `best_chains`."""
        cache = self.cache
        if not self._weights.reads_itself or len(set(x.to_host().slots)) > 1:
            return None
        try:
            cache.reserve(x.to_host().slots[:1], [x.size + steps])
        except OutOfBlocks:
            return None
        assert x.hidden is not None
        library, reader = self.target.library, self._weights.reader if only is None else self._trimmed(only)
        library.threads(torch.get_num_threads())
        native_pass = NativePass(x, cache, cache.stage(x), self._rotations, self._stores)
        cos, sin = self._rotations.upto(int(x.positions[-1]) + steps)
        native_pass.pointers.cos, native_pass.pointers.sin = cos.data_ptr(), sin.data_ptr()
        ids, hidden = x.ids.contiguous(), x.hidden.contiguous()
        words = self.ids if only is None else only.contiguous()
        out, logits = torch.empty_like(hidden), torch.empty(reader.head.rows)
        arguments = (
            byref(self._shape), byref(reader), byref(native_pass.pointers), ids.data_ptr(), hidden.data_ptr(),
            out.data_ptr(), logits.data_ptr(),
        )  # fmt: skip
        held = (ids, hidden, out, logits, words, cos, sin, native_pass)
        return reader, None if words is None else words.data_ptr(), arguments, held

    def _check(self, outside: int, ids: Int[Tensor, "T"]) -> None:
        if outside:
            raise DrafterError(
                f"a token id is outside the vocabulary of {self.target.info.vocab_size}: {ids.tolist()[:16]}"
            )

    def _trimmed(self, only: Int[Tensor, "W"]) -> native.Reader:
        """The same head over fewer rows, packed once: a trimmed vocabulary stays the same from pass to pass."""
        held = self._only
        if held is None or held[0] is not only or held[1] != self._weights.version:
            own = self._weights.rows
            packed = self.target.subset(only)[0] if own is None else take_rows(own, places(self.ids, only.cpu()))
            reader = native.Reader.from_buffer_copy(self._weights.reader)
            reader.head = matrix(packed)
            self._only = held = only, self._weights.version, reader, packed
        return held[2]

    def ranked(
        self, logits: Float[Tensor, "U W"], temperature: list[float], k: int, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "U k"], Int[Tensor, "U k"]]:
        return native_ranked(self.target, logits, temperature, k, self.ids if only is None else only)


def native_ranked(
    target: NativeDecoder, logits: Float[Tensor, "U W"], temperature: list[float], k: int, ids: Int[Tensor, "W"] | None
) -> tuple[Float[Tensor, "U k"], Int[Tensor, "U k"]]:
    """`ids`: token of each column, None: all in order."""
    rows, columns = logits.shape
    ids = None if ids is None else ids.contiguous()
    prob, tokens = torch.empty(rows, k), torch.empty(rows, k, dtype=torch.int64)
    target.library.calls.draftwood_rank(
        logits.data_ptr(), logits.stride(0), rows, columns, (c_float * rows)(*temperature), k,
        None if ids is None else ids.data_ptr(), prob.data_ptr(), tokens.data_ptr(),
    )  # fmt: skip
    return prob, tokens


class _Weights:
    """A head packed for the kernels, and held for as long as they point to it. Runners that were opened from one another
    share it, so weights that are packed again are packed for all of them."""

    def __init__(self, head: Head, target: NativeDecoder) -> None:
        self.head, self.target, self.version = head, target, 0
        self.tensors = dict(head.tensors)  # as they are now
        self._pack()

    @torch.inference_mode()
    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        check(weights, self.tensors)
        self.tensors |= {name: t.detach().float().cpu().clone() for name, t in weights.items()}
        self._pack()
        self.version += 1

    def _pack(self) -> None:
        head, target, t = self.head, self.target, self.tensors
        c = head.config
        self.kept: list[object] = [target.weights]
        kind = {
            "eagle": self._joined,
            "deep_eagle": self._deep,
            "griffin": self._guided,
            "eagle3": self._fused,
            "exit": self._at_exit,
            "exit_layer": self._at_exit,
        }[c.kind]
        self.layers = 1
        self.fuse: native.Matrix | None = None
        self.rows: Packed | None = None  # None: the target's
        self.reads_itself = kind != self._at_exit
        self.feature_norms = (
            [self._vector(t[f"feature_norms.{i}"]) for i in range(len(c.taps))] if c.norm_features else []
        )
        self.fused_norm = self._vector(t["fused_norm"]) if c.norm_fused else None
        own = kind(t)
        self.reader = native.Reader(
            **({"layer": self._layer(t, "layer")} | own),
            head=self._rows(target, head.ids) if self.rows is None else matrix(self.rows),
            normed_residual=c.norm_before_residual,
            normed_output=c.norm_output,
        )

    def _layer(self, t: dict[str, Tensor], at: str) -> native.Layer:
        """One of the net's layers, by its name."""
        products = {name: self._product(t, f"{at}.{name}") for name in PRODUCTS if f"{at}.{name}.weight" in t}
        norms = {name: self._vector(t[f"{at}.{name}"]) for name in NORMS if f"{at}.{name}" in t}
        return native_layer(LayerWeights(products, norms))

    def _joined(self, t: dict[str, Tensor]) -> dict[str, Any]:
        """One product of the embedding and the feature is the input and the residual."""
        first = self._product(t, "fc")
        return {"embedding": matrix(self.target.weights.embedding), "join": product_matrix(first)}

    def _deep(self, t: dict[str, Tensor]) -> dict[str, Any]:
        """Ordinary layers behind the first one."""
        self.layers = self.head.config.depth
        more = (native.Layer * (self.layers - 1))(*(self._layer(t, f"more.{i}") for i in range(self.layers - 1)))
        self.kept.append(more)
        return {**self._joined(t), "more": more, "deeper": self.layers - 1}

    def _guided(self, t: dict[str, Tensor]) -> dict[str, Any]:
        """The token is read twice, and the layer's last product gives what the head reads and what the next step reads."""
        up, down = (self._product(t, name) for name in ("side_up", "side_down"))
        parts: list[dict[str, Tensor]] = [{}, {}]
        for name in ("layer.down.weight", "layer.down.bias"):
            for part, half in zip(parts, t[name].chunk(2) if name in t else (), strict=False):
                part[name] = half
        predict = self._product(parts[0], "layer.down")
        side = {"side_up": product_matrix(up), "side_down": product_matrix(down)}
        norms = self._norms(t, {"fused_norm": "fused_norm", "side_norm": "side_norm"})
        layer = self._layer({**t, **parts[1]}, "layer")
        return {**self._joined(t), **side, **norms, "predict": product_matrix(predict), "layer": layer}

    def _fused(self, t: dict[str, Tensor]) -> dict[str, Any]:
        """Several features are fused before; attention reads the embedding beside the result."""
        first = self._product(t, "fc")
        self.fuse = product_matrix(first)
        if not self.head.config.target_rows:
            self.rows = self._keep(pack(t["lm_head.weight"]))
        theirs = {"embed_norm": "embed_norm", "feature_norm": "hidden_norm", "norm": "norm"}
        return {"embedding": matrix(self.target.weights.embedding), **self._norms(t, theirs)}

    def _at_exit(self, t: dict[str, Tensor]) -> dict[str, Any]:
        """Attention reads the hidden state alone."""
        return self._norms(t, {"feature_norm": "hidden_norm", "norm": "norm"})

    def _norms(self, t: dict[str, Tensor], names: dict[str, str]) -> dict[str, Any]:
        return {name: self._vector(t[other]).data_ptr() for name, other in names.items()}

    def _product(self, tensors: dict[str, Tensor], name: str) -> Product:
        bias = tensors.get(f"{name}.bias")
        packed = self._keep(pack(tensors[f"{name}.weight"]))
        return Product((packed,), None if bias is None else self._vector(bias))

    def _rows(self, target: NativeDecoder, ids: Int[Tensor, "W"] | None) -> native.Matrix:
        """The target's own rows of the head."""
        if ids is None:
            return matrix(target.weights.head)
        packed, rows = target.subset(ids)
        self.kept.append(packed)
        return rows

    def _keep(self, packed: Packed) -> Packed:
        self.kept.append(packed)
        return packed

    def _vector(self, t: Tensor) -> Tensor:
        kept = t.detach().float().cpu().contiguous()
        self.kept.append(kept)
        return kept
