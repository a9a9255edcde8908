"""The MLP speculator with tables of its own, as the original trains it: an embedding and a head for each step.

    s_i = GELU(LN_i(proj_i s_{i-1} + (a_e / a_s) emb_i[x_i]))    logits_i = head_i s_i

Tied, all steps share one embedding and one head.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.drafters.nets import mlp_state
from draftwood.drafters.nets.config import HeadConfig


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
        self.mix = mlp_state.mix(config)

    def start(self, f: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """The state before the first step."""
        return mlp_state.start(self.config, f)

    def step(self, index: int, s: Float[Tensor, "*S _"], token: Int[Tensor, "*S"]) -> Float[Tensor, "*S inner"]:
        """The next state, from the token drafted last."""
        e = self.emb[mlp_state.own(self.config, index)][token]
        return mlp_state.step(self, index, s, e.to(s.dtype))

    def logits(self, index: int, s: Float[Tensor, "*S inner"]) -> Float[Tensor, "*S W"]:
        return F.linear(s, self.head[mlp_state.own(self.config, index)].to(s.dtype))
