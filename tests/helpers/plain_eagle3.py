"""EAGLE-3 from its files, native or of the speculators package, by the equations of the card."""

from pathlib import Path

import torch
from torch import Tensor

from plain_files import layer, read, rms


def logits(folder: Path, features: list[Tensor], embedded: Tensor, steps: int = 3) -> Tensor:
    c, t = read(folder)
    shape = c.get("transformer_layer_config", c)
    at, eps = "layers.0." if "transformer_layer_config" in c else "midlayer.", shape["rms_norm_eps"]
    if c["fc_norm"]:
        features = [rms(f, t[f"fc_norm.{i}.weight"], eps) for i, f in enumerate(features)]
    wide = torch.cat(features, dim=-1)
    if c["norm_before_fc"]:
        wide = rms(wide, t["input_norm.weight"], eps)
    u, out = wide @ t["fc.weight"].T, []
    for _ in range(steps):
        normed = rms(u, t[f"{at}hidden_norm.weight"], eps)
        e = rms(embedded[: len(u)], t[f"{at}input_layernorm.weight"], eps)
        residual = normed if c["norm_before_residual"] else u
        a = layer(shape, t, at, torch.cat([e, normed], dim=-1), residual)[-1:]
        y = rms(a, t["norm.weight"], eps)
        out.append(y @ t["lm_head.weight"].T)
        u = torch.cat([u, y if c["norm_output"] else a])
    return torch.cat(out)


def tokens(folder: Path, vocab_size: int) -> Tensor:
    """Of each column: offsets, or all of them."""
    _, t = read(folder)
    return torch.arange(len(t["d2t"])) + t["d2t"] if "d2t" in t else torch.arange(vocab_size)
