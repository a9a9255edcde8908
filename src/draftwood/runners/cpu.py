"""CpuRunner: a model in host memory. The host reads any number without waiting, so passes have exact sizes, without
padding."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.block_cache import BlockCache
from draftwood.cache.dense import DenseCache
from draftwood.core.forward import ALL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan
from draftwood.core.model_info import ModelInfo
from draftwood.core.protocols import Model
from draftwood.errors import ModelError
from draftwood.runners.with_cache import WithCache


class CpuRunner(WithCache):
    """`info`: of a model that was loaded from files; by default `model.info`."""

    def __init__(self, model: Model, info: ModelInfo | None = None, cache: DenseCache | None = None) -> None:
        super().__init__(cache)
        self.model = model
        self.info = model.info if info is None else info

    def open(
        self, slots: int, capacity: int, max_cache_tokens: int | None = None, pools: Sequence[CacheSpec] = ()
    ) -> "CpuRunner":
        sizes: dict[str, Any] = {"slots": slots, "capacity": capacity, "max_cache_tokens": max_cache_tokens}
        specs = self.model.cache_specs
        if self.info.reads_blocks:
            return type(self)(self.model, self.info, BlockCache(specs, **sizes, pools=pools))
        return type(self)(self.model, self.info, DenseCache(specs, **sizes, device=self.info.device, pools=pools))

    def first_layers(self, count: int) -> "CpuRunner":
        if not self.info.layer_ranges:
            raise ModelError(f"{self.info.backend}: runs all of its {self.info.num_layers} layers or none")
        shallow: Any = self.model
        return type(self)(shallow.first_layers(count))

    def execute(self, x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
        return self.model.forward(x, self.cache, taps=taps, layers=layers)

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return self.model.embed(ids)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        return self.model.head(hidden, ids=ids, norm=norm)
