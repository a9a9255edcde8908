"""A net that tells the target's distributions from a draft's: from a context and a mean embedding to a logit.

    [norm(f), norm(y)]    2H -> H -> 1    SiLU between; y = sum_v pi(v) E[v]

The norms have no weights: features are many times larger than embeddings, which would go unnoticed beside them.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Discriminator(nn.Module):
    """Only trains others: it is stored in checkpoints, never with the weights that recipes load."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(2 * width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, f: Float[Tensor, "N H"], y: Float[Tensor, "N H"], fixed: bool = False) -> Float[Tensor, "N"]:
        """Above 0: y is taken for the target's. `fixed`: its weights get no gradient."""
        dtype = self.first.weight.dtype
        x = torch.cat([F.rms_norm(x.to(dtype), x.shape[-1:], eps=1e-6) for x in (f, y)], dim=-1)
        weights = (x.detach() if fixed else x for layer in (self.first, self.last) for x in (layer.weight, layer.bias))
        first, first_bias, last, last_bias = weights
        return F.linear(F.silu(F.linear(x, first, first_bias)), last, last_bias)[:, 0]
