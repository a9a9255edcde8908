"""The MLP speculator: a small recurrent net over the last feature and the tokens drafted so far.

    s_i = GELU(LN_i(proj_i s_{i-1} + (a_e / a_s) emb(x_i)))    logits_i = W head(s_i)

Embedding and head are the target's own, through one projection each: tables of its own would outweigh the target.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets import mlp_state
from draftwood.drafters.nets.config import HeadConfig


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
        self.mix = mlp_state.mix(config)

    def start(self, f: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """The state before the first step."""
        return mlp_state.start(self.config, f)

    def step(self, index: int, s: Float[Tensor, "*S _"], e: Float[Tensor, "*S H"]) -> Float[Tensor, "*S inner"]:
        """The next state, from the embedding of the token drafted last."""
        return mlp_state.step(self, index, s, self.emb(e))

    def read(self, s: Float[Tensor, "*S inner"]) -> Float[Tensor, "*S H"]:
        return self.head(s)
