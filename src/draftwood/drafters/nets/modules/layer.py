"""Layers whose attention reads an input of its own width: the body of every feature drafter."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.core.config import ModelConfig
from draftwood.models.rope import rotate


class DraftAttention(nn.Module):
    """Grouped attention. The caller prepares its input and owns the residual."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        c = self.config = config
        self.qkv = nn.Linear(width, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim, bias=c.qkv_bias)
        self.out = nn.Linear(c.num_heads * c.head_dim, c.hidden_size, bias=c.out_bias)

    def project(
        self, x: Float[Tensor, "T in"], cos: Tensor, sin: Tensor
    ) -> tuple[Float[Tensor, "T heads d"], Float[Tensor, "T kv d"], Float[Tensor, "T kv d"]]:
        """Queries, keys and values, turned to their positions."""
        c = self.config
        qkv = self.qkv(x).view(len(x), c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        qk = rotate(qkv[:, : c.num_heads + c.num_kv_heads], cos, sin)
        return qk[:, : c.num_heads], qk[:, c.num_heads :], qkv[:, c.num_heads + c.num_kv_heads :]

    def tail(self, residual: Float[Tensor, "*S H"], mixed: Float[Tensor, "*S A"]) -> Float[Tensor, "*S H"]:
        """What follows attention."""
        return residual + self.out(mixed)


class DraftLayer(DraftAttention):
    """The same with a gated MLP behind it. `outputs`: so many, side by side, each with the residual of its own."""

    def __init__(self, config: ModelConfig, width: int, outputs: int = 1) -> None:
        super().__init__(config, width)
        c = config
        self.outputs = outputs
        self.mlp_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.gate_up = nn.Linear(c.hidden_size, 2 * c.intermediate_size, bias=c.mlp_bias)
        self.down = nn.Linear(c.intermediate_size, outputs * c.hidden_size, bias=c.mlp_bias)

    def tail(self, residual: Float[Tensor, "*S H"], mixed: Float[Tensor, "*S A"]) -> Float[Tensor, "*S O"]:
        h = super().tail(residual, mixed)
        gate, up = self.gate_up(norm(h, self.mlp_norm, self.config.rms_eps)).chunk(2, dim=-1)
        h = h if self.outputs == 1 else torch.cat([h] * self.outputs, dim=-1)
        return h + self.down(F.silu(gate) * up)


class NextLayer(DraftLayer):
    """A layer that follows another one: with a norm before its attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.attention_norm = nn.Parameter(torch.ones(config.hidden_size))

    def enter(self, h: Float[Tensor, "*S H"]) -> tuple[Float[Tensor, "*S H"], Float[Tensor, "*S H"]]:
        """Attention's input and the residual."""
        return norm(h, self.attention_norm, self.config.rms_eps), h


Mix = Callable[[int, DraftAttention, Float[Tensor, "*S in"]], Float[Tensor, "*S A"]]


def through(
    layers: Sequence[DraftAttention], x: Float[Tensor, "*S in"], residual: Float[Tensor, "*S H"], mix: Mix
) -> Float[Tensor, "*S O"]:
    """The output of the last layer. `mix`: attention of layer i over its input, before its last product."""
    h = layers[0].tail(residual, mix(0, layers[0], x))
    for i, layer in enumerate(layers[1:], 1):
        assert isinstance(layer, NextLayer)
        x, residual = layer.enter(h)
        h = layer.tail(residual, mix(i, layer, x))
    return h


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)
