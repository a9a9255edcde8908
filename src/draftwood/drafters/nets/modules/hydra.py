"""Hydra's heads: Medusa's, but each also reads the embeddings of the tokens drafted before it.

head i:  c = [f_t, E[x_{t+1}], .., E[x_{t+1+i}]]    y = S_i c + SiLU(A_i c + b_i), then residual blocks; logits = W y
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig


class HydraNet(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d = config.target_hidden
        self.first = nn.ModuleList(_nothing((i + 2) * d, d) for i in range(config.stages))
        self.skip = nn.ModuleList(_feature((i + 2) * d, d) for i in range(config.stages))
        self.rest = nn.ModuleList(
            nn.ModuleList(_nothing(d, d) for _ in range(config.depth - 1)) for _ in range(config.stages)
        )

    def head(self, index: int, f: Float[Tensor, "*S H"], e: list[Float[Tensor, "*S H"]]) -> Float[Tensor, "*S H"]:
        """`e`: embeddings of the tokens from x_{t+1} on, index + 1 of them."""
        c = torch.cat([f, *e], dim=-1)
        y = self.skip[index](c) + F.silu(self.first[index](c))
        for block in self.rest[index]:  # type: ignore[union-attr]
            y = y + F.silu(block(y))
        return y


def _nothing(wide: int, d: int) -> nn.Linear:
    """Starts at zero: an untrained head says what the feature says."""
    linear = nn.Linear(wide, d)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _feature(wide: int, d: int) -> nn.Linear:
    linear = nn.Linear(wide, d, bias=False)
    linear.weight.data = torch.eye(d, wide)
    return linear
