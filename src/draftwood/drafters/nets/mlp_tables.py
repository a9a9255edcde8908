"""The MLP speculator with tables of its own, as the original trains it: an embedding and a head for each step.

    s_i = GELU(LN_i(proj_i s_{i-1} + (a_e / a_s) emb_i[x_i]))    logits_i = head_i s_i

Tied, all steps share one embedding, one head and one norm, and all but the first one projection.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.drafters.nets.config import HeadConfig

_EPS = 1e-6


class MLPTablesNet(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d, inner, n = config.target_hidden, config.layer.hidden_size, config.stages
        own = 1 if config.tied else n
        self.first = nn.Linear(d, inner, bias=False)
        self.proj = nn.ModuleList(nn.Linear(inner, inner, bias=False) for _ in range(min(own, n - 1)))
        self.emb = nn.Parameter(torch.zeros(own, config.layer.vocab_size, inner))
        self.head = nn.Parameter(torch.zeros(own, config.rows, inner))
        self.weight = nn.Parameter(torch.ones(own, inner))
        self.bias = nn.Parameter(torch.zeros(own, inner))
        state = 0.5 ** (0.5 / n)
        self.mix = math.sqrt((1 - state**2) * inner / 2) / state

    def start(self, f: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """The state before the first step."""
        return _scaled(f) / math.sqrt(2) if self.config.scale_input else f

    def step(self, index: int, s: Float[Tensor, "*S inner"], token: Int[Tensor, "*S"]) -> Float[Tensor, "*S inner"]:
        """The next state, from the token drafted last."""
        which = self._which(index)
        above = self.first(s) if index == 0 else self.proj[0 if self.config.tied else index - 1](s)
        x = _scaled(above + self.mix * self.emb[which][token].to(s.dtype))
        return F.gelu(x * self.weight[which].to(x.dtype) + self.bias[which].to(x.dtype))

    def logits(self, index: int, s: Float[Tensor, "*S inner"]) -> Float[Tensor, "*S W"]:
        return F.linear(s, self.head[self._which(index)].to(s.dtype))

    def _which(self, index: int) -> int:
        return 0 if self.config.tied else index


def _scaled(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), None, _EPS)
