"""A block net as a model, on stock operations and on an accelerator.

A pass without wanted logits is text: fused features in, entries made. In any other one the last `ahead + 1` tokens of each
slot are a block, root and masks, and logits are wanted at its first masks; what stands before them is text.

    segment   c_5 c_6 | root m_1 m_2        text attends to nothing that counts; the block to the text and to all of itself
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.dense import DenseCache
from draftwood.cache.device import DeviceCache
from draftwood.core.forward import ForwardInput, Segment
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.runners.device_runner import DeviceRunner
from draftwood.drafters.nets.runners.runner import FeatureModel, FloatRunner
from draftwood.models.attention import torch_attention, visible_masks, write_entries
from draftwood.models.rope import angles
from draftwood.runners.rectangles import Attention, Buffers


class BlockModel(FeatureModel, Protocol):
    """What a drafter of blocks asks of a net, whatever backend runs it."""

    @property
    def ahead(self) -> int:
        """Tokens behind the root in one pass."""
        ...

    def enter(self, roots: Int[Tensor, "B"]) -> Float[Tensor, "B n d"]:
        """The inputs of the blocks behind these roots, the roots' own first."""
        ...


def chains_of(
    model: BlockModel, x: ForwardInput, temperature: list[float], steps: int, only: Int[Tensor, "W"] | None, k: int
) -> tuple[Int[Tensor, "B steps k"], Float[Tensor, "B steps k"]]:
    """`FeatureModel.best_chains` of a block: its best tokens, whatever stands before them; probability 0 behind its end."""
    logits, texts = model.execute(x, only)[1], len(temperature)
    each = [t for t in temperature for _ in range(len(logits) // texts)]
    prob, tokens = (
        found.view(texts, -1, found.shape[-1])[:, :steps]
        for found in model.ranked(logits, each, min(k, logits.shape[1]), only)
    )
    missing = (0, 0, 0, steps - prob.shape[1])
    return F.pad(tokens, missing), F.pad(prob, missing)


def opened(s: Segment, size: int) -> Segment:
    """The last `size` tokens of a segment, which are its last staged entries, attend to one another."""
    assert s.visible is not None
    visible = s.visible.clone()
    visible[-size:, -size:] = True
    return replace(s, visible=visible)


class BlockRunner(FloatRunner):
    """On stock operations, over a dense cache."""

    def __init__(self, net: Any, target: Runner, ids: Int[Tensor, "W"] | None, cache: DenseCache | None = None) -> None:
        super().__init__(net, target, ids, cache)
        self.ahead: int = net.config.stages

    def open(self, slots: int, capacity: int) -> "BlockRunner":
        cache = DenseCache(self.cache_specs, slots=slots, capacity=capacity, device=self.target.info.device)
        return BlockRunner(self.net, self.target, self.ids, cache)

    @torch.inference_mode()
    def enter(self, roots: Int[Tensor, "B"]) -> Float[Tensor, "B n d"]:
        return self.net.enter(self.target.embed(roots).to(self.dtype))

    @torch.inference_mode()
    def execute(
        self, x: ForwardInput, only: Int[Tensor, "W"] | None = None
    ) -> tuple[Float[Tensor, "T d"], Float[Tensor, "U W"]]:
        net, cache = self.net, self.cache
        assert x.hidden is not None
        h, (cos, sin) = x.hidden.to(self.dtype), angles(self._freq, x.positions, self.dtype)
        segments = cache.stage(x)
        if not x.want.shape[0]:
            for i in range(len(net.layers)):
                _, k, v = net.project(i, h, cos, sin)
                for s in segments:
                    write_entries(cache.store(f"k{i}"), k, s, x)
                    write_entries(cache.store(f"v{i}"), v, s, x)
            return h, h.new_zeros(0, net.config.rows if only is None else len(only))
        segments = [opened(s, self.ahead + 1) for s in segments]
        masks = visible_masks(segments, x, self.dtype, None)

        def attend(i: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return torch_attention(q, k, v, cache.store(f"k{i}"), cache.store(f"v{i}"), x, segments, masks)

        h = net.run(h, self._in_block(segments, x), cos, sin, attend)
        return h, self._logits(net.read(h.index_select(0, x.want)), only)

    @torch.inference_mode()
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

    def _in_block(self, segments: Sequence[Segment], x: ForwardInput) -> Tensor:
        size = self.ahead + 1
        inside = [place >= s.stop - size for s in segments for place in range(s.start, s.stop)]
        return torch.tensor(inside, device=x.ids.device)[:, None]


class BlockDeviceRunner(DeviceRunner):
    """In rectangles: text and block of all slots are one captured pass."""

    def __init__(
        self,
        net: Any,
        target: Runner,
        ids: Int[Tensor, "W"] | None,
        cache: DeviceCache | None = None,
        rows: dict[int, tuple[Tensor | None, Tensor]] | None = None,
    ) -> None:
        super().__init__(net, target, ids, cache, rows)
        self.ahead: int = net.config.stages

    def open(self, slots: int, capacity: int) -> "BlockDeviceRunner":
        cache = DeviceCache(self.cache_specs, slots=slots, capacity=capacity, device=self.target.info.device)
        return BlockDeviceRunner(self.net, self.target, self.ids, cache, self._rows)

    @torch.inference_mode()
    def enter(self, roots: Int[Tensor, "B"]) -> Float[Tensor, "B n d"]:
        return self.net.enter(self.target.embed(roots).to(self.dtype))

    def attention(self, buffers: Buffers) -> Attention:
        assert self._table is not None
        return Attention(buffers, self.cache, self._table, self._dtype, None, mutual=True)

    def _scored(self, buffers: Buffers, attention: Attention, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        net = self.net
        assert buffers.hidden is not None
        h = buffers.hidden.flatten(0, 1).to(self.dtype)
        cos, sin = angles(self._freq, buffers.positions.flatten(), self.dtype)
        if rows is None:
            for i in range(len(net.layers)):
                attention(i, *net.project(i, h, cos, sin))
            return h, None
        _, _, first, line, _ = buffers.meta
        staged = first[:, None] + torch.arange(buffers.size.width, device=first.device)
        h = net.run(h, (staged >= line[:, None]).view(-1, 1), cos, sin, attention)
        return h, F.linear(net.read(h), rows)

    @torch.inference_mode()
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
