"""Files and one Llama layer as plain functions, for readers that owe nothing to ours."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_text())
    (file,) = [path for path in folder.iterdir() if path.name != "config.json"]
    return config, load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x: Tensor, theta: float) -> Tensor:
    """Rotary positions 0.. of x [T, heads, d]: the pair (i, i + d/2) by position / theta^(2i/d)."""
    length, _, d = x.shape
    angle = torch.arange(length)[:, None] / theta ** (torch.arange(0, d, 2) / d)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def layer(c: dict[str, Any], t: dict[str, Tensor], prefix: str, x: Tensor, residual: Tensor) -> Tensor:
    """All positions at once under a causal mask; `x` is what attention reads."""

    def linear(name: str, y: Tensor) -> Tensor:
        return y @ t[f"{prefix}{name}.weight"].T + t.get(f"{prefix}{name}.bias", torch.zeros(()))

    heads, kv, d, length = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], len(x)
    theta = c["rope_parameters"]["rope_theta"] if "rope_parameters" in c else c["rope_theta"]
    q = turned(linear("self_attn.q_proj", x).view(length, heads, d), theta)
    k = turned(linear("self_attn.k_proj", x).view(length, kv, d), theta)
    v = linear("self_attn.v_proj", x).view(length, kv, d)
    mixed = torch.zeros(length, heads, d)
    for h in range(heads):
        at = h * kv // heads
        score = q[:, h] @ k[:, at].T / math.sqrt(d)
        score = score.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        mixed[:, h] = score.softmax(-1) @ v[:, at]
    h = residual + linear("self_attn.o_proj", mixed.flatten(1))
    y = rms(h, t[f"{prefix}post_attention_layernorm.weight"], c["rms_norm_eps"])
    gate = linear("mlp.gate_proj", y)
    return h + linear("mlp.down_proj", gate * gate.sigmoid() * linear("mlp.up_proj", y))
