"""The tensors of an expanded model, in parts that are made one at a time: the embedding, each layer, the head.

Layers that the old model has not come last and add nothing, so its taps keep their numbers. Masked rows of the head have the
weight -MASK where the final hidden state is always positive: their logits are -2^27 over the root mean square of the old
residual before the final norm, times the root of the new hidden size over the old, plus what a token's might be.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.models.loading.tensor_names import EMBEDDING, HEAD
from draftwood.testing.expand.axes import ANY, Axes, Axis, added_axes, layer_axes, widened
from draftwood.testing.expand.fill import Filling
from draftwood.testing.expand.shape import GAIN, MASK, constant

ATTENTION_NORM, MLP_NORM = "input_layernorm", "post_attention_layernorm"


def parts(
    old: ModelConfig, tensors: Mapping[str, Tensor], new: ModelConfig, filling: Filling
) -> Iterator[dict[str, Tensor]]:
    """Tensors by name. `new` comes from `shape.expanded`."""
    kept = constant(old, new)
    axes = layer_axes(old, new, bool(kept))
    yield {EMBEDDING: _embedding(tensors[EMBEDDING], old, new, filling, kept)}
    added = added_axes(axes)
    for layer in range(new.num_layers):
        source = min(layer, old.num_layers - 1)
        yield _layer(old, new, tensors, source, layer, axes if layer < old.num_layers else added, filling)
    final = {"model.norm.weight": filling.gain(tensors["model.norm.weight"], axes.raw, GAIN)}
    if not new.tie_embeddings:
        final[HEAD] = _head(tensors[EMBEDDING if old.tie_embeddings else HEAD], old, new, axes, filling)
    yield final


def _embedding(weight: Tensor, old: ModelConfig, new: ModelConfig, filling: Filling, kept: float) -> Tensor:
    """Padded rows are of the same kind as the others, although no text has their tokens."""
    rows, columns = (
        widened(o, n, ANY) for o, n in ((old.vocab_size, new.vocab_size), (old.hidden_size, new.hidden_size))
    )
    out = Filling(filling.dtype, noise=False).matrix(EMBEDDING, weight, rows, columns)
    if len(rows) > len(weight):
        out[len(weight) :, : old.hidden_size] = filling.noise_like(
            EMBEDDING, (len(rows) - len(weight), old.hidden_size), weight
        )
        out[:, -1] = kept
    return out


def _head(weight: Tensor, old: ModelConfig, new: ModelConfig, axes: Axes, filling: Filling) -> Tensor:
    out = filling.matrix(HEAD, weight, widened(old.vocab_size, new.vocab_size, ANY), axes.raw)
    if len(out) > len(weight):
        out[len(weight) :, -1] = -MASK
    return out


def _layer(
    old: ModelConfig,
    new: ModelConfig,
    tensors: Mapping[str, Tensor],
    source: int,
    layer: int,
    axes: Axes,
    filling: Filling,
) -> dict[str, Tensor]:
    """Layer `layer` from the weights of layer `source`, of which an added layer has only the size of its numbers."""
    theirs, ours = f"model.layers.{source}.", f"model.layers.{layer}."
    found: dict[str, Tensor] = {}
    for name in (ATTENTION_NORM, MLP_NORM):
        found[f"{ours}{name}.weight"] = filling.gain(tensors[f"{theirs}{name}.weight"], axes.raw)
    for name, rows, columns, scale in _products(old, new, axes):
        weight = tensors[f"{theirs}{name}.weight"]
        found[f"{ours}{name}.weight"] = filling.matrix(f"{ours}{name}", weight, rows, columns, scale)
        bias = tensors.get(f"{theirs}{name}.bias")
        if bias is not None:
            added = torch.zeros_like(bias) if layer >= old.num_layers else bias
            found[f"{ours}{name}.bias"] = filling.bias(added, rows, scale)
    return found


def _products(old: ModelConfig, new: ModelConfig, axes: Axes) -> list[tuple[str, Axis, Axis, Tensor | None]]:
    return [
        ("self_attn.q_proj", axes.q, axes.residual, query_scale(old, new, len(axes.q))),
        ("self_attn.k_proj", axes.k, axes.residual, None),
        ("self_attn.v_proj", axes.v, axes.residual, None),
        ("self_attn.o_proj", axes.residual, axes.mixed, None),
        ("mlp.gate_proj", axes.gate, axes.residual, None),
        ("mlp.up_proj", axes.up, axes.residual, None),
        ("mlp.down_proj", axes.residual, axes.units, None),
    ]


def query_scale(old: ModelConfig, new: ModelConfig, size: int) -> Float[Tensor, "size"] | None:
    """Scores are divided by the root of the head size. None: it stays."""
    if new.head_dim == old.head_dim:
        return None
    return torch.full((size,), math.sqrt(new.head_dim / old.head_dim), dtype=torch.float64)
