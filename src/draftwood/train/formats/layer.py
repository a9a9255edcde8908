"""The decoder layer of an EAGLE head: its tensor names and config as in Hugging Face's Llama."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.loading.hf_config import parse, unparse
from draftwood.train.formats.files import Shapes


def parse_layer(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """The sizes of the draft layer, which is a Llama layer for every target."""
    layers = raw.get("num_hidden_layers", 1)
    if layers != 1:
        raise WeightsError(f"{where}: num_hidden_layers is {layers!r}, only heads of one layer can be read")
    config = parse({**raw, "num_hidden_layers": 1, "model_type": "llama"}, where=where)
    config = replace(config, tie_embeddings=False, bos_token_id=None, eos_token_ids=())
    own = raw.get("qkv_bias")
    return config if own is None else replace(config, qkv_bias=bool(own))


def layer_json(layer: ModelConfig, *, old_keys: bool) -> dict[str, Any]:
    """`old_keys`: also write the rotary fields that readers before transformers 5 use."""
    if layer.sliding_window is not None:
        raise WeightsError(f"a sliding window of {layer.sliding_window} tokens cannot be stored in this format")
    plain = replace(layer, family="llama", num_layers=1, qk_norm=False, qkv_bias=layer.out_bias, tie_embeddings=False)
    raw = unparse(plain)
    del raw["architectures"]
    if old_keys:
        rope = {key: value for key, value in raw["rope_parameters"].items() if key != "rope_theta"}
        raw |= {"rope_theta": layer.rope_theta, "rope_scaling": None if rope["rope_type"] == "default" else rope}
    if layer.qkv_bias != layer.out_bias:
        if not old_keys:
            raise WeightsError("biases on q, k and v alone cannot be stored in this format\nhint: use eagle3")
        raw["qkv_bias"] = layer.qkv_bias
    return raw


def shapes(layer: ModelConfig, width: int, prefix: str) -> Shapes:
    """Shapes of all tensors of the layer; `width` is the input width of attention."""
    hidden, q = layer.hidden_size, layer.num_heads * layer.head_dim
    columns = {"qkv": width, "out": q, "gate_up": hidden, "down": layer.intermediate_size}
    biased = {"qkv": layer.qkv_bias, "out": layer.out_bias, "gate_up": layer.mlp_bias, "down": layer.mlp_bias}
    found: Shapes = {f"{prefix}post_attention_layernorm.weight": (hidden,)}
    for ours, parts in _parts(layer).items():
        for name, rows in parts:
            found[f"{prefix}{name}.weight"] = (rows, columns[ours])
            if biased[ours]:
                found[f"{prefix}{name}.bias"] = (rows,)
    return found


def _parts(layer: ModelConfig) -> dict[str, tuple[tuple[str, int], ...]]:
    """Our stacked matrices: names and row counts of their parts."""
    q, kv, inner = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim, layer.intermediate_size
    return {
        "qkv": (("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)),
        "out": (("self_attn.o_proj", layer.hidden_size),),
        "gate_up": (("mlp.gate_proj", inner), ("mlp.up_proj", inner)),
        "down": (("mlp.down_proj", layer.hidden_size),),
    }


def gather(tensors: Mapping[str, Tensor], layer: ModelConfig, prefix: str) -> dict[str, Tensor]:
    """Stacks their tensors into ours."""
    found = {"layer.mlp_norm": tensors[f"{prefix}post_attention_layernorm.weight"]}
    for ours, parts in _parts(layer).items():
        for what in ("weight", "bias"):
            if f"{prefix}{parts[0][0]}.{what}" in tensors:
                found[f"layer.{ours}.{what}"] = torch.cat([tensors[f"{prefix}{name}.{what}"] for name, _ in parts])
    return found


def scatter(tensors: Mapping[str, Tensor], layer: ModelConfig, prefix: str) -> dict[str, Tensor]:
    """Splits our tensors into theirs."""
    found = {f"{prefix}post_attention_layernorm.weight": tensors["layer.mlp_norm"]}
    for ours, parts in _parts(layer).items():
        for what in ("weight", "bias"):
            if f"layer.{ours}.{what}" in tensors:
                pieces = tensors[f"layer.{ours}.{what}"].split([rows for _, rows in parts])
                found |= {f"{prefix}{name}.{what}": piece for (name, _), piece in zip(parts, pieces, strict=True)}
    return found
