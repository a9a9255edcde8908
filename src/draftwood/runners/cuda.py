"""CudaRunner: a decoder on an accelerator. Passes are rectangles of a few sizes, each captured once as a graph and replayed.
The host enqueues them and reads nothing.

On a CPU the same passes run without graphs, so that every machine can test them.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.device import DeviceCache
from draftwood.cache.paged import PagedCache
from draftwood.core import host
from draftwood.core.forward import ALL, CacheSpec, ForwardInput, ForwardOutput, LayerPlan, Span
from draftwood.core.host import put
from draftwood.core.model_info import ModelInfo
from draftwood.core.sampling.sampler import best_of
from draftwood.errors import OptionError
from draftwood.kernels.gpu.twins import Twins
from draftwood.models.decoder import Decoder
from draftwood.runners.fused import FusedDecoder
from draftwood.runners.fused_check import CHECKED_LAYERS, difference, exact_copy, operations_for
from draftwood.runners.rectangles import (
    WIDEST,
    Attention,
    Buffers,
    Size,
    TreeTable,
    flat_places,
    placed,
    spans_of,
)
from draftwood.runners.with_cache import WithCache

WARM_UP = 1  # runs before a capture, in which libraries choose their kernels and workspaces
MOST_FUNCTIONS = 256  # captured besides passes; the oldest are dropped
SIMILAR = 4  # widths within this factor share a rectangle


class Captured:
    """A function of tensors at fixed addresses, `inputs`. Once it is captured its outputs have fixed addresses too."""

    def __init__(self, inputs: Any, run: Callable[[Any], Any], pool: Any) -> None:
        self.inputs, self._run, self._pool = inputs, run, pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: Any = None

    def __call__(self) -> Any:
        if self._pool is None:  # no accelerator, or a pass so wide that launches do not matter
            return self._run(self.inputs)
        if self._graph is None:
            self._capture()
        else:
            self._graph.replay()
        return self._outputs

    def _capture(self) -> None:
        """Not with torch.cuda.graph, which collects garbage and empties the allocator's cache: that takes longer than the
        capture."""
        side, here, graph = torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            with host.sealed():
                for _ in range(WARM_UP):
                    self._run(self.inputs)
            graph.capture_begin(pool=self._pool)
            try:
                self._outputs = self._run(self.inputs)
            finally:
                graph.capture_end()
        here.wait_stream(side)
        graph.replay()
        self._graph = graph


class Rectangles(WithCache):
    """Passes over a device cache, split into rectangles and captured by size. A subclass supplies what a pass computes."""

    _coarse = False  # whether passes read lengths on the device, so that few sizes suffice

    def __init__(
        self,
        cache: DeviceCache | None,
        dtype: torch.dtype,
        window: int | None,
        full_layers: Sequence[int] = (),
        cap: float | None = None,
    ) -> None:
        super().__init__(cache)
        self._layers: dict[str, Any] = {"full_layers": full_layers, "cap": cap}
        self._dtype, self._window = dtype, window
        self._captured: dict[Any, Captured] = {}
        self._functions: dict[Any, Captured] = {}
        self._lines: dict[int, int] = {}  # known staged entries of each slot, as its last pass had them
        self._table = None if cache is None else TreeTable(cache)
        cuda = cache is not None and cache.device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if cuda else None

    @property
    def cache(self) -> DeviceCache:
        found = super().cache
        assert isinstance(found, DeviceCache)
        return found

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> None:
        self.cache.keep(slots, entries, tokens)

    def rectangle(
        self,
        x: ForwardInput,
        spans: Sequence[Span],
        key: Any,
        run: Callable[[Buffers, Attention], Any],
        more: int = 0,
    ) -> tuple[Any, Size]:
        """Run one rectangle. `key`: what `run` depends on besides the size. `more`: entries that it writes behind those of
        its tokens."""
        return self.buffered(x, spans, key, lambda buffers: run(buffers, self.attention(buffers)), more)

    def buffered(
        self, x: ForwardInput, spans: Sequence[Span], key: Any, run: Callable[[Buffers], Any], more: int = 0
    ) -> tuple[Any, Size]:
        """The same for a function that attends in its own way."""
        cache = self.cache
        moved = [cache.note(s.slot, s.first + s.stop - s.start + more) for s in spans]
        if any(moved):  # the stores have other addresses now, and an emptied pool cannot be used again
            self._captured.clear()
            self._pool = None if self._pool is None else torch.cuda.graph_pool_handle()
        cache.ready()
        size = Size.of(spans, cache.room, more, coarse=self._coarse)
        wide = None if x.hidden is None else (x.hidden.shape[-1], x.hidden.dtype)
        found = self._captured.get((size, key))
        if found is None:
            small = size.width <= WIDEST
            found = Captured(Buffers.empty(size, cache, wide), run, self._pool if small else None)
            if small:
                self._captured[size, key] = found
        found.inputs.fill(x, spans, placed(spans, size, x), cache.padding)
        return found(), size

    @torch.inference_mode()
    def captured(
        self, key: Hashable, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        if self._pool is None:
            return function(*inputs)
        shapes = tuple((x.shape, x.dtype) for x in inputs)
        found = self._functions.get((key, shapes))
        if found is None:
            if len(self._functions) >= MOST_FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            own = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs)
            # A pool of its own: passes that are replayed before its outputs are read would overwrite them in a shared one.
            pool = torch.cuda.graph_pool_handle()
            found = self._functions[key, shapes] = Captured(own, lambda given: function(*given), pool)
        for mine, given in zip(found.inputs, inputs, strict=True):
            mine.copy_(given, non_blocking=True)
        return found()

    def attention(self, buffers: Buffers) -> Attention:
        """Attention over this runner's cache."""
        assert self._table is not None
        return Attention(buffers, self.cache, self._table, self._dtype, self._window, **self._layers)

    def spans(self, x: ForwardInput) -> tuple[Span, ...]:
        found = x.spans or tuple(spans_of(x.to_host(), self.cache.length, self._lines))
        self._lines.update((s.slot, s.line) for s in found)
        return found


def similar(spans: Sequence[Span]) -> list[list[Span]]:
    """Spans in groups of similar width, so that single tokens are not padded to the width of a prompt chunk."""
    groups: list[list[Span]] = []
    for s in sorted(spans, key=lambda s: s.start - s.stop):
        if groups and SIMILAR * (s.stop - s.start) >= groups[-1][0].stop - groups[-1][0].start:
            groups[-1].append(s)
        else:
            groups.append([s])
    return [sorted(group, key=lambda s: s.start) for group in groups]


class CudaRunner(Rectangles):
    """A float decoder. `operations`: the kernels that run its layers, or their twins; None: stock operations, over a cache
    that is not in blocks. `invariant`: only kernels that are batch-invariant will do."""

    def __init__(
        self,
        model: Decoder,
        info: ModelInfo | None = None,
        cache: DeviceCache | None = None,
        operations: Twins | None = None,
        invariant: bool = False,
    ) -> None:
        c = model.config
        super().__init__(cache, model.dtype, c.sliding_window, c.full_layers, c.attention_cap)
        self.model = model
        self.info = model.info if info is None else info
        self._operations, self._invariant = operations, invariant
        self._chosen = operations is not None
        self._fused = None if operations is None else FusedDecoder(model, operations)
        self._coarse = self._fused is not None

    def open(
        self, slots: int, capacity: int, max_cache_tokens: int | None = None, pools: Sequence[CacheSpec] = ()
    ) -> "CudaRunner":
        found = self.operations() if not pools else None  # parts reach their pools slot by slot
        if found is None:
            return self.stock(slots, capacity, max_cache_tokens, pools)
        cache = PagedCache(
            self.model.cache_specs,
            slots=slots,
            capacity=capacity,
            max_cache_tokens=max_cache_tokens,
            device=self.info.device,
            operations=found,
        )
        opened = CudaRunner(self.model, self.info, cache, found, self._invariant)
        assert opened._fused is not None
        opened._fused.prepare()
        return opened

    def stock(
        self, slots: int, capacity: int, max_cache_tokens: int | None = None, pools: Sequence[CacheSpec] = ()
    ) -> "CudaRunner":
        """Opened with stock operations."""
        if self._invariant:
            raise OptionError("batch_invariant: not with parts that keep pools in the cache\nhint: another recipe")
        cache = DeviceCache(
            self.model.cache_specs,
            slots=slots,
            capacity=capacity,
            max_cache_tokens=max_cache_tokens,
            device=self.info.device,
            pools=pools,
        )
        return CudaRunner(self.model, self.info, cache)

    def operations(self) -> Twins | None:
        """The kernels that run this model on this device. Checked at the first call, which compiles them."""
        if not self._chosen:
            self._operations = operations_for(self.model, invariant=self._invariant, check=_checked)
            self._chosen = True
        return self._operations

    def first_layers(self, count: int) -> "CudaRunner":
        model = self.model.first_layers(count)
        info = replace(model.info, batch_invariant=self._invariant)
        return CudaRunner(model, info, operations=self.operations(), invariant=self._invariant)

    @torch.inference_mode()
    def execute(self, x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
        groups = similar(self.spans(x))
        scores = layers.stop in (None, self.info.num_layers) and x.want.shape[0] > 0
        key = (taps, layers, scores, x.hidden is not None)

        def run(buffers: Buffers, attention: Attention) -> Any:
            given = buffers.hidden
            h = self.model.embed(buffers.ids.flatten()) if given is None else given.flatten(0, 1)
            ctx = self.model.angled(attention, buffers.positions.flatten(), attention.group)
            h, features = self.model.run(h, ctx, taps, layers)
            logits = self.model.head(h) if scores and buffers.size.width <= WIDEST else None
            return h, features, logits, None if logits is None else best_of(logits)

        def fused(buffers: Buffers) -> Any:
            assert self._fused is not None and isinstance(self.cache, PagedCache)
            return self._fused.run(buffers, self.cache, taps, layers, scores)

        if len(groups) == 1:
            return self._whole(x, groups[0], *self._run(x, groups[0], key, run, fused), scores)
        joined: dict[Any, Tensor] = {}
        for group in groups:  # copied at once: the next rectangle may use the same memory
            (h, features, _, _), size = self._run(x, group, key, run, fused)
            _collect(joined, x, group, size, {None: h, **features})
        hidden = joined.pop(None)
        if not scores:
            return ForwardOutput(hidden.new_zeros(0, self.info.vocab_size), hidden, _inverse(x), joined, tokens=x)
        logits, best = self._scored(hidden.index_select(0, x.want))
        return ForwardOutput(logits, hidden, _inverse(x), joined, tokens=x, best=best)

    def _run(self, x: ForwardInput, spans: Sequence[Span], key: Any, stock: Any, fused: Any) -> tuple[Any, Size]:
        if self._fused is None:
            return self.rectangle(x, spans, key, stock)
        return self.buffered(x, spans, key, fused)

    def _scored(self, hidden: Float[Tensor, "U H"]) -> tuple[Float[Tensor, "U V"], Int[Tensor, "U"]]:
        if self._fused is not None:
            return self._fused.scored(hidden)
        logits = self.model.head(hidden)
        return logits, best_of(logits)

    def _whole(self, x: ForwardInput, spans: Sequence[Span], found: Any, size: Size, scores: bool) -> ForwardOutput:
        """The output of a pass of one rectangle. Its logits are not copied but found by index."""
        h, features, logits, best = found
        places: Tensor | None = None
        if size.width * len(spans) != x.size or any(s.stop - s.start != size.width for s in spans):
            places = put(flat_places(spans, size, x.size), self.info.device)
        taken = (lambda y: y[: x.size]) if places is None else (lambda y: y.index_select(0, places))
        at = torch.arange(x.size, device=self.info.device) if places is None else places
        hidden = taken(h)
        if logits is None and scores:
            logits, best = self._scored(hidden.index_select(0, x.want))
            at = _inverse(x)
        return ForwardOutput(
            logits=h.new_zeros(0, self.info.vocab_size) if logits is None else logits,
            hidden=hidden,
            logits_index=at,
            features={tap: taken(y) for tap, y in features.items()},
            tokens=x,
            best=best,
        )

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return self.model.embed(ids)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        return self.model.head(hidden, ids=ids, norm=norm)


# What the check said of a model, for its other runners: another recipe, another engine.
_FOUND: WeakKeyDictionary[Decoder, dict[bool, str]] = WeakKeyDictionary()


def _checked(model: Decoder, operations: Twins) -> str:
    known = _FOUND.setdefault(model, {})
    if operations.invariant not in known:
        known[operations.invariant] = disagreement(model, operations)
    return known[operations.invariant]


def disagreement(model: Decoder, operations: Twins) -> str:
    """What the operations compute differently from stock ones on the model's device, in its first layers; empty: nothing."""
    shallow = model.first_layers(min(CHECKED_LAYERS, len(model.layers)))
    try:
        fused = CudaRunner(shallow, operations=operations).open(2, 256)
        stock = CudaRunner(shallow).stock(2, 256)
        return difference(CudaRunner(exact_copy(shallow)).stock(2, 256), stock, fused)
    except Exception as error:  # a compiler's, a driver's or a kernel's: whatever it is, stock operations run
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _collect(
    joined: dict[Any, Tensor], x: ForwardInput, spans: Sequence[Span], size: Size, found: dict[Any, Tensor]
) -> None:
    """Copy what a rectangle computed to the places of its tokens in the pass."""
    own = [place for s in spans for place in range(s.start, s.stop)]
    inside = flat_places(spans, size, x.size)
    at, source = put([own, [inside[place] for place in own]], x.ids.device).unbind(0)
    for name, y in found.items():
        if name not in joined:
            joined[name] = y.new_zeros(x.size, y.shape[-1])
        joined[name].index_copy_(0, at, y.index_select(0, source))


def _inverse(x: ForwardInput) -> Int[Tensor, "T"]:
    """For each place of the pass its row of logits; 0 where none were wanted, which is a valid index."""
    at = torch.zeros(x.size, dtype=torch.int64, device=x.want.device)
    return at.index_copy_(0, x.want, torch.arange(x.want.shape[0], device=x.want.device))
