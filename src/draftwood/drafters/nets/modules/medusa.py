"""Medusa's heads: head k reads the last feature alone and guesses the token k + 2 places on.

    logits_k = W (x + SiLU(A_k x + b_k))    several blocks may follow each other; W is the target's own

A_k and b_k start at zero, so an untrained head says what the target said last. The original trains a table W_k for each
head instead of sharing the target's W.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig


class MedusaNet(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d = config.target_hidden
        self.weight = nn.Parameter(torch.zeros(config.stages, config.depth, d, d))
        self.bias = nn.Parameter(torch.zeros(config.stages, config.depth, d))

    def head(self, index: int, x: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """What the target's head rows multiply."""
        for weight, bias in zip(self.weight[index], self.bias[index], strict=True):
            x = x + F.silu(F.linear(x, weight.to(x.dtype), bias.to(x.dtype)))
        return x


class MedusaTablesNet(nn.Module):
    """With a table W_k of each head. `blocks` are the heads without their tables."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = MedusaNet(config)
        self.rows = nn.Parameter(torch.zeros(config.stages, config.rows, config.target_hidden))

    def head(self, index: int, x: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """What the head's own rows multiply."""
        return self.blocks.head(index, x)

    def logits(self, index: int, y: Float[Tensor, "*S H"]) -> Float[Tensor, "*S W"]:
        return F.linear(y, self.rows[index].to(y.dtype))
