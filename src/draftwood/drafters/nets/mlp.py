"""The MLP speculator: a small recurrent net over the last feature and the tokens drafted so far.

    s_i = GELU(LN_i(proj_i s_{i-1} + (a_e / a_s) emb(x_i)))    logits_i = W head(s_i)

a_s = 0.5^(0.5/n) and a_e = sqrt((1 - a_s^2) inner / 2) keep the context at half of the state's energy by the last step.
Embedding and head are the target's own, through one projection each: tables of its own would outweigh the target.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.config import HeadConfig

_EPS = 1e-6


class MLPNet(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d, inner, n = config.target_hidden, config.layer.hidden_size, config.stages
        own = 1 if config.tied else n
        self.first = nn.Linear(d, inner, bias=False)
        self.proj = nn.ModuleList(nn.Linear(inner, inner, bias=False) for _ in range(min(own, n - 1)))
        self.emb = nn.Linear(d, inner, bias=False)
        self.head = nn.Linear(inner, d, bias=False)
        self.weight = nn.Parameter(torch.ones(own, inner))
        self.bias = nn.Parameter(torch.zeros(own, inner))
        for module in (self.first, self.emb, self.head, *self.proj):
            nn.init.normal_(module.weight, std=1 / math.sqrt(module.weight.shape[1]))  # type: ignore[arg-type]
        state = 0.5 ** (0.5 / n)
        self.mix = math.sqrt((1 - state**2) * inner / 2) / state

    def start(self, f: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """The state before the first step."""
        return _scaled(f) / math.sqrt(2) if self.config.scale_input else f

    def step(self, index: int, s: Float[Tensor, "*S inner"], e: Float[Tensor, "*S H"]) -> Float[Tensor, "*S inner"]:
        """The next state, from the embedding of the token drafted last."""
        which = 0 if self.config.tied else index
        above = self.first(s) if index == 0 else self.proj[0 if self.config.tied else index - 1](s)
        # An embedding row is small beside a unit vector; scaled to unit energy it mixes as the equation means it.
        x = _scaled(above + self.mix * self.emb(e))
        return F.gelu(x * self.weight[which].to(x.dtype) + self.bias[which].to(x.dtype))

    def read(self, s: Float[Tensor, "*S inner"]) -> Float[Tensor, "*S H"]:
        return self.head(s)


def _scaled(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + _EPS).to(x.dtype)
