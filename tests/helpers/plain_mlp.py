"""The MLP speculator from its files: s_i = GELU(LN_i(proj_i s_{i-1} + (a_e / a_s) emb_i[x_i])), logits_i = head_i s_i."""

import math
from pathlib import Path

import torch
from torch import Tensor

from plain_files import read


def logits(folder: Path, f: Tensor, drafted: Tensor) -> Tensor:
    c, t = read(folder)
    n, inner = c["n_predict"], c["inner_dim"] or c["emb_dim"]
    a_s = 0.5 ** (0.5 / n)
    a_e = math.sqrt((1 - a_s**2) * inner / 2)
    s, out = normed(f) / math.sqrt(2) if c["scale_input"] else f, []
    for i in range(n):
        k = 0 if c["tie_weights"] else i
        at = min(i, 1) if c["tie_weights"] else i
        s = t[f"speculator.proj.{at}.weight"] @ s + a_e / a_s * t[f"speculator.emb.{k}.weight"][drafted[i]]
        s = normed(s) * t[f"speculator.ln.{k}.weight"] + t[f"speculator.ln.{k}.bias"]
        s = 0.5 * s * (1 + torch.erf(s / math.sqrt(2)))
        out.append(t[f"speculator.head.{k}.weight"] @ s)
    return torch.stack(out)


def normed(x: Tensor) -> Tensor:
    return x * (x.pow(2).mean() + 1e-6).rsqrt()
