"""Medusa's heads with a table each, as the original trains them: W_k instead of the target's W.

logits_k = W_k (x + SiLU(A_k x + b_k))
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.config import HeadConfig
from draftwood.drafters.nets.medusa import MedusaNet


class MedusaTablesNet(nn.Module):
    """`blocks` are the heads without their tables."""

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
