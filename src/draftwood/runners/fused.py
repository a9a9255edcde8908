"""FusedDecoder: the layers of a float decoder in six kernels each, over a cache in blocks.

The same weights and the same function as models/decoder.py; sums are rounded elsewhere. Gains of norms are multiplied into
the matrices behind them, in place, once for each model; the model computes the same afterwards.

    few tokens    [norm, qkv, rope, cache]  [attention]  [join]  [out, residual]  [norm, gate-up, gate]  [down, residual]
    many tokens   the library's products, with norm, rope and gate as kernels between them
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.cache.paged import BLOCK, PagedCache
from draftwood.core.forward import FINAL, LayerPlan
from draftwood.core.sampling.sampler import best_of
from draftwood.kernels.gpu.arguments import Heads, Placement
from draftwood.kernels.gpu.tiles import FEWEST, MOST, tiles_for
from draftwood.kernels.gpu.twins import Twins
from draftwood.models.decoder import Decoder, FloatLinear, Layer
from draftwood.models.rope import angles
from draftwood.runners.rectangles import WIDEST, Buffers

LEAST_WIDTH, MOST_WIDTH = 16, 256  # of a head


def unsupported(model: Decoder) -> str:
    """Why the kernels cannot run a model; empty if they can."""
    c = model.config
    if model.dtype not in (torch.bfloat16, torch.float16):
        return f"dtype {str(model.dtype).removeprefix('torch.')}"
    if c != c.plain_layer():
        return "a gate, norms, caps or positions that they do not compute"
    if c.sliding_window is not None:
        return f"a sliding window of {c.sliding_window}"
    if c.out_bias or c.mlp_bias:
        return "a bias in the output or MLP product"
    if c.head_dim & (c.head_dim - 1) or not LEAST_WIDTH <= c.head_dim <= MOST_WIDTH:
        return f"heads of width {c.head_dim}"
    if not all(isinstance(linear, FloatLinear) for linear in _linears(model)):
        return "weights that are not plain matrices"
    for tokens in (FEWEST, 2 * FEWEST, MOST):
        for kind, linear, unit, whole in _products(model):
            rows, columns = linear.weight.shape
            if tiles_for(kind, columns, rows, tokens, unit, whole) is None:
                return f"a matrix of {rows} x {columns}, which no tile divides"
    return ""


def _linears(model: Decoder) -> list[Any]:
    found: list[Any] = [model.embedding, model.lm_head]
    for layer in model.layers:
        assert isinstance(layer, Layer)
        found += [layer.qkv, layer.out, layer.gate_up, layer.down]
    return found


def _products(model: Decoder) -> list[tuple[str, FloatLinear, int, bool]]:
    """(kind, matrix, rows that a tile must divide, whether it must be those) of one layer and the head."""
    layer: Any = model.layers[0]
    c = model.config
    head: Any = model.lm_head
    return [
        ("rotated", layer.qkv, c.head_dim, c.qk_norm),
        ("added", layer.out, c.hidden_size, False),
        ("gated", layer.gate_up, 2 * c.intermediate_size, False),
        ("added", layer.down, c.hidden_size, False),
        ("scored", head, 0, False),
    ]


@torch.inference_mode()
def fold_gains(model: Decoder) -> None:
    """Multiply the gains of norms into the matrices behind them. A second time changes nothing: the gains are ones then."""
    for layer in model.layers:
        assert isinstance(layer, Layer)
        for gain, linear in ((layer.attention_norm, layer.qkv), (layer.mlp_norm, layer.gate_up)):
            assert isinstance(linear, FloatLinear) and gain is not None
            linear.weight.mul_(gain)
            gain.fill_(1.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """What the layers of one pass share."""

    cache: PagedCache
    at: Placement
    context: int


class FusedDecoder:
    """`operations`: the kernels, or their twins in plain torch."""

    def __init__(self, model: Decoder, operations: Twins) -> None:
        self.model, self.operations = model, operations
        c = model.config
        self.heads = Heads(c.num_heads, c.num_kv_heads, c.head_dim, BLOCK)
        self._angles: Float[Tensor, "positions d"] = torch.empty(0, c.head_dim)

    def prepare(self) -> None:
        """Once before the first pass: fold gains, compute angles."""
        if len(self._angles):
            return
        fold_gains(self.model)
        positions = torch.arange(self.model.config.max_positions, device=self.model.device)
        cos, sin = angles(self.model.freq, positions, torch.float32)  # type: ignore[arg-type]
        half = self.heads.head_dim // 2
        self._angles = torch.cat([cos[:, 0, :half], sin[:, 0, half:]], dim=-1).contiguous()

    def run(
        self, buffers: Buffers, cache: PagedCache, taps: frozenset[int], layers: LayerPlan, scores: bool
    ) -> tuple[Tensor, dict[int, Tensor], Tensor | None, Tensor | None]:
        """The residual after the layers, tapped residuals, logits and the places of the greatest. Rows beyond those of the
        rectangle hold nothing."""
        size, ops = buffers.size, self.operations
        at = ops.placement(
            buffers.meta,
            buffers.parents,
            buffers.positions,
            cache.table,
            cache.trees,
            room=cache.room,
            words=-(-max(size.nodes, 1) // 64),
            most_position=self._angles.shape[0] - 1,
            heads=self.heads,
        )
        given = buffers.hidden is not None
        source = buffers.ids.flatten() if buffers.hidden is None else buffers.hidden.flatten(0, 1)
        table: Any = self.model.embedding
        x, squares = ops.entered(source, table.weight, ops.bucket(at.rows), given)
        shared = _Pass(cache, at, size.context)
        run = self._few if ops.few(at.rows) else self._many
        h, features = run(x, squares, shared, taps, layers)
        if FINAL in taps:
            features[FINAL] = ops.normed(h, self._norm, self._eps)
        if not scores or size.width > WIDEST:
            return h, features, None, None
        return h, features, *self.scored(h)

    def scored(self, h: Float[Tensor, "M H"]) -> tuple[Float[Tensor, "M V"], Int[Tensor, "M"]]:
        """Logits of residuals after the last layer. Any number of rows."""
        ops, count = self.operations, h.shape[0]
        head: Any = self.model.lm_head
        if not ops.few(count):
            logits = F.linear(ops.normed(h, self._norm, self._eps), head.weight)
            return logits, best_of(logits)
        if ops.bucket(count) != count:
            h = F.pad(h, (0, 0, 0, ops.bucket(count) - count))
        logits, best = ops.scored(ops.normed(h, self._norm, self._eps), head.weight)
        return logits[:count], best[:count]

    def _few(
        self, x: Tensor, squares: Tensor, shared: _Pass, taps: frozenset[int], layers: LayerPlan
    ) -> tuple[Tensor, dict[int, Tensor]]:
        ops, eps = self.operations, self._eps
        features = {layers.start: x} if layers.start in taps else {}
        for group in layers.groups(len(self.model.layers)):
            mixed: dict[int, Tensor] = {}
            for i in group:
                if i not in layers.skip_attention:
                    layer, keys, values = self._layer(i, shared.cache)
                    q = ops.rotated(
                        x, squares, layer.qkv.weight, layer.qkv.bias, self._gains(layer), eps, self._angles, shared.at,
                        keys, values, self.heads,
                    )  # fmt: skip
                    mixed[i] = self._attended(q, keys, values, shared)
            for i in group:
                layer, _, _ = self._layer(i, shared.cache)
                if i in mixed:
                    x, squares = ops.added(mixed[i], layer.out.weight, x)
                if i not in layers.skip_mlp:
                    x, squares = ops.added(ops.gated(x, squares, layer.gate_up.weight, eps), layer.down.weight, x)
            if group.stop in taps:
                features[group.stop] = x
        return x, features

    def _many(
        self, x: Tensor, squares: Tensor, shared: _Pass, taps: frozenset[int], layers: LayerPlan
    ) -> tuple[Tensor, dict[int, Tensor]]:
        ops, eps = self.operations, self._eps
        features = {layers.start: x} if layers.start in taps else {}
        normed = ops.normed(x, None, eps)
        for group in layers.groups(len(self.model.layers)):
            mixed: dict[int, Tensor] = {}
            for i in group:
                if i not in layers.skip_attention:
                    layer, keys, values = self._layer(i, shared.cache)
                    q = ops.turned(
                        F.linear(normed, layer.qkv.weight), layer.qkv.bias, self._gains(layer), eps, self._angles,
                        shared.at, keys, values, self.heads,
                    )  # fmt: skip
                    mixed[i] = self._attended(q, keys, values, shared)
            for i in group:
                layer, _, _ = self._layer(i, shared.cache)
                if i in mixed:
                    x, normed = ops.added_norm(x, F.linear(mixed[i], layer.out.weight), eps)
                if i not in layers.skip_mlp:
                    y = F.linear(ops.gate(F.linear(normed, layer.gate_up.weight)), layer.down.weight)
                    x, normed = ops.added_norm(x, y, eps)
            if group.stop in taps:
                features[group.stop] = x
        return x, features

    def _attended(self, q: Tensor, keys: Tensor, values: Tensor, shared: _Pass) -> Tensor:
        return self.operations.attended(q, keys, values, shared.cache.table, shared.at, self.heads, shared.context)

    def _layer(self, index: int, cache: PagedCache) -> tuple[Any, Tensor, Tensor]:
        pair = cache.pair(index)
        return self.model.layers[index], pair[0], pair[1]

    def _gains(self, layer: Any) -> tuple[Tensor, Tensor] | None:
        return None if layer.q_norm is None else (layer.q_norm, layer.k_norm)

    @property
    def _norm(self) -> Tensor:
        assert self.model.norm is not None
        return self.model.norm

    @property
    def _eps(self) -> float:
        return self.model.config.rms_eps

    def first_layers(self, model: Decoder) -> "FusedDecoder":
        """For a model of the first layers of this one."""
        return FusedDecoder(model, self.operations)
