"""A block net beside an int8 target: the same kernels. Text takes one product a layer, the block one call for all layers."""

from collections.abc import Mapping, Sequence
from ctypes import byref, pointer

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.block_cache import BlockCache
from draftwood.cache.dense import DenseCache, slot_runs
from draftwood.core.forward import CacheSpec, ForwardInput, HostInput
from draftwood.core.host import host
from draftwood.drafters.nets.files.refresh import check
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.runners.block_runner import chains_of, opened
from draftwood.drafters.nets.runners.native_runner import native_ranked
from draftwood.drafters.nets.runners.runner import DrawnByLevels
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
from draftwood.models.backends.int8_weights import PRODUCTS, LayerWeights, Product
from draftwood.models.backends.quantised_blocks import Packed, pack
from draftwood.runners.with_cache import WithCache


class BlockInt8Runner(DrawnByLevels, WithCache):
    """A token has the same bits whatever runs with it. Passes as in `BlockRunner`."""

    def __init__(
        self, head: Head, target: NativeDecoder, cache: DenseCache | None = None, weights: "_Weights | None" = None
    ) -> None:
        WithCache.__init__(self, cache)
        c = head.config.layer
        self.max_positions = target.config.max_positions
        self.head, self.target, self.taps, self.ahead = head, target, head.config.taps, head.config.stages
        self.cache_specs = tuple(
            CacheSpec(f"{kind}{i}", c.num_kv_heads, c.head_dim, torch.float16)
            for i in range(c.num_layers)
            for kind in "kv"
        )
        self.ids = None if head.ids is None else head.ids.cpu().contiguous()
        self._weights = _Weights(head, target) if weights is None else weights
        self._shape, self._rotations, self._stores = shape_of(c), Rotations(c), Stores(c.num_layers)
        # The rows of the target's head asked for last.
        self._only: tuple[Tensor | None, Packed | None, native.Matrix] | None = None

    def open(self, slots: int, capacity: int) -> "BlockInt8Runner":
        cache = BlockCache(self.cache_specs, slots=slots, capacity=capacity)
        return BlockInt8Runner(self.head, self.target, cache, self._weights)

    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        self._weights.refresh(weights)

    def fuse(self, features: Sequence[Float[Tensor, "T H"]]) -> Float[Tensor, "T d"]:
        w, calls = self._weights, self.target.library.calls
        self.target.library.threads(torch.get_num_threads())
        if w.feature_norms:
            features = [self._normed(x, norm) for x, norm in zip(features, w.feature_norms, strict=True)]
        wide = torch.cat(list(features), dim=-1)
        out = torch.empty(len(wide), w.fuse.rows)
        calls.draftwood_product(byref(w.fuse), wide.data_ptr(), len(wide), out.data_ptr())
        return self._normed(out, w.fused_norm)

    def _normed(self, x: Float[Tensor, "T H"], weight: Float[Tensor, "H"]) -> Float[Tensor, "T H"]:
        x = x.contiguous()
        out, eps = torch.empty_like(x), self.head.config.layer.rms_eps
        self.target.library.calls.draftwood_norm(x.data_ptr(), weight.data_ptr(), eps, *x.shape, out.data_ptr())
        return out

    def enter(self, roots: Int[Tensor, "B"]) -> Float[Tensor, "B n d"]:
        e = self.target.embed(roots)
        return torch.cat([e[:, None], self._weights.masks.expand(len(e), -1, -1)], dim=1)

    def execute(
        self, x: ForwardInput, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        assert x.hidden is not None
        library, head = self.target.library, self._rows(only)
        library.threads(torch.get_num_threads())
        if not x.want.shape[0]:
            self._text(x)
            return x.hidden, torch.empty(0, head.rows)
        size = self.ahead + 1
        text, block = split(x, size)
        self._text(text)
        w, cache = self._weights, self.cache
        segments = [opened(s, size) for s in cache.stage(block)]
        passes = NativePass(block, cache, segments, self._rotations, self._stores)
        assert block.hidden is not None
        h = block.hidden.float().clone(memory_format=torch.contiguous_format)
        library.calls.draftwood_layers(
            byref(self._shape), w.layers, 0, len(w.layers), None, None, byref(passes.pointers), h.data_ptr(), None,
            None, 0, None,
        )  # fmt: skip
        blocks = torch.arange(len(h)).view(-1, size)
        want = blocks[:, 1 : 1 + len(x.want) // len(blocks)].flatten()
        logits = logit_room(len(want), head.rows)
        library.calls.draftwood_head(
            byref(head), w.norm.data_ptr(), self.head.config.layer.rms_eps, h.data_ptr(), want.data_ptr(), len(want),
            logits.data_ptr(), logits.stride(0), None,
        )  # fmt: skip
        return h, logits

    def _text(self, x: ForwardInput) -> None:
        """Entries of every layer, and nothing else."""
        w, cache = self._weights, self.cache
        assert x.hidden is not None
        hidden, ids = x.hidden.float().contiguous(), x.ids.contiguous()
        out = torch.empty_like(hidden)
        passes = NativePass(x, cache, cache.stage(x), self._rotations, self._stores)
        stores = passes.pointers.stores
        for i, reader in enumerate(w.readers):
            passes.pointers.stores = pointer(stores[i])
            self.target.library.calls.draftwood_features(
                byref(self._shape), byref(reader), byref(passes.pointers), ids.data_ptr(), hidden.data_ptr(),
                out.data_ptr(), None, 0, None, 0,
            )  # fmt: skip

    def _rows(self, only: Int[Tensor, "W"] | None) -> native.Matrix:
        """These rows of the target's head; the same tensor is asked for from pass to pass."""
        asked = self.ids if only is None else only
        if self._only is None or self._only[0] is not asked:
            packed, rows = (None, matrix(self.target.weights.head)) if asked is None else self.target.subset(asked)
            self._only = asked, packed, rows
        return self._only[2]

    def ranked(
        self, logits: Float[Tensor, "U W"], temperature: list[float], k: int, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "U k"], Int[Tensor, "U k"]]:
        return native_ranked(self.target, logits, temperature, k, self.ids if only is None else only)

    def best_chains(
        self,
        x: ForwardInput,
        temperature: list[float],
        steps: int,
        only: Int[Tensor, "W"] | None = None,
        least: float = 0.0,
        k: int = 1,
    ) -> tuple[Int[Tensor, "B steps k"], Float[Tensor, "B steps k"]]:
        return chains_of(self, x, temperature, steps, only, k)


def split(x: ForwardInput, size: int) -> tuple[ForwardInput, ForwardInput]:
    """The text and the blocks of a pass, without logits. The last `size` tokens of each slot are its block."""
    columns, positions = x.to_host(), host(x.positions)
    runs = [(start, stop) for _, start, stop in slot_runs(columns.slots)]
    text = [place for start, stop in runs for place in range(start, stop - size)]
    block = [place for _, stop in runs for place in range(stop - size, stop)]
    assert x.hidden is not None

    def part(places: list[int]) -> ForwardInput:
        four = (columns.ids, columns.slots, columns.entries, columns.parents)
        own = HostInput(*([column[place] for place in places] for column in four))
        made = ForwardInput.of(own, [positions[place] for place in places], [], x.ids.device)
        return made.starting_from(x.hidden.index_select(0, torch.tensor(places)))  # type: ignore[union-attr]

    return part(text), part(block)


class _Weights:
    """A net packed for the kernels, and held for as long as they point to it; runners that were opened from one another
    share it."""

    def __init__(self, head: Head, target: NativeDecoder) -> None:
        self.head, self.target = head, target
        self.tensors = dict(head.tensors)  # as they are now
        self._pack()

    @torch.inference_mode()
    def refresh(self, weights: Mapping[str, Tensor]) -> None:
        check(weights, self.tensors)
        self.tensors |= {name: t.detach().float().cpu().clone() for name, t in weights.items()}
        self._pack()

    def _pack(self) -> None:
        c, t = self.head.config, self.tensors
        self.kept: list[object] = [self.target.weights]
        layers = [self._layer(i) for i in range(c.layer.num_layers)]
        self.layers = (native.Layer * len(layers))(*layers)
        # Text is read by a layer's entries alone, behind the norm of its attention.
        self.readers = [native.Reader(layer=layer, feature_norm=layer.attention_norm) for layer in layers]
        fc = self._product("fc")
        self.fuse = product_matrix(fc)
        self.fused_norm, self.norm = self._vector("fused_norm"), self._vector("norm")
        names = [f"feature_norms.{i}" for i in range(len(c.taps))] if c.norm_features else []
        self.feature_norms = [self._vector(name) for name in names]
        self.masks = torch.stack([t[f"masks.{i}"].float().cpu() for i in range(c.stages)])

    def _layer(self, index: int) -> native.Layer:
        here = f"layers.{index}."
        products = {name: self._product(here + name) for name in PRODUCTS}
        norms = {
            "attention_norm": self._vector(f"attention_norms.{index}"),
            "mlp_norm": self._vector(f"{here}mlp_norm"),
        }
        return native_layer(LayerWeights(products, norms))

    def _product(self, name: str) -> Product:
        packed = pack(self.tensors[f"{name}.weight"])
        self.kept.append(packed)
        return Product((packed,), self._vector(f"{name}.bias") if f"{name}.bias" in self.tensors else None)

    def _vector(self, name: str) -> Tensor:
        kept = self.tensors[name].detach().float().cpu().contiguous()
        self.kept.append(kept)
        return kept
