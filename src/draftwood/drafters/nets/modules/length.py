"""A net that says how many tokens are worth drafting, before any is drafted.

    z = enter([norm(E[x_j]), norm(f_j)])      z <- z + SiLU(W z), `config.depth` times      k = w . z + b

x_j is the token after which the target emitted the root, f_j the target's final feature there: all of it is known when a
round is planned. The norms have no weights of their own; they bring both halves to one scale.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig


class LengthNet(nn.Module):
    """`config.layer.hidden_size` is its own width, `config.stages` the longest draft it was trained for."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        wide = config.layer.hidden_size
        self.enter = nn.Linear(2 * config.target_hidden, wide)
        self.blocks = nn.ModuleList(nn.Linear(wide, wide) for _ in range(config.depth))
        self.last = nn.Linear(wide, 1)

    def forward(self, embedding: Float[Tensor, "*S H"], feature: Float[Tensor, "*S H"]) -> Float[Tensor, "*S"]:
        """Not rounded, and of any size."""
        eps = self.config.layer.rms_eps
        halves = [F.rms_norm(x, x.shape[-1:], eps=eps) for x in (embedding, feature)]
        z = self.enter(torch.cat(halves, dim=-1))
        for block in self.blocks:
            z = z + F.silu(block(z))
        return self.last(z)[..., 0]
