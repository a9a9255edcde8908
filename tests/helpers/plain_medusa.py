"""Medusa from its files, original or vLLM's: logits_k = W_k (x + SiLU(A_k x + b_k)), block after block."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from plain_files import read


def logits(folder: Path, x: Tensor, shared: Tensor | None = None) -> Tensor:
    c, t = read(folder)
    out = []
    for head in range(c["medusa_num_heads"]):
        y = x
        for block in range(c["medusa_num_layers"]):
            vllm = f"blocks.{head}.layers.{block}" in {name.rpartition(".")[0] for name in t}
            at = f"blocks.{head}.layers.{block}" if vllm else f"{head}.{block}.linear"
            y = y + F.silu(t[f"{at}.weight"] @ y + t.get(f"{at}.bias", torch.zeros(())))
        own = t.get(f"{head}.{c['medusa_num_layers']}.weight", t.get(f"lm_heads.{head}.weight"))
        rows = shared if own is None else own
        assert rows is not None
        out.append(rows @ y)
    return torch.stack(out)
