"""A net that says how likely a drafted token is accepted, from the draft's hidden state after reading it.

    x = norm(h)      x <- x + SiLU(W x), `config.depth` times      A = softmax(U x)_1

The norm has no weights of its own. With `config.tied` all blocks are one.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig

REJECTED = 6.0
"""Weight of rejection in the loss. It makes the odds of A so many times smaller than those of acceptance."""


class AcceptanceNet(nn.Module):
    """`config.layer` has the draft's hidden size."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        wide = config.layer.hidden_size
        self.blocks = nn.ModuleList(nn.Linear(wide, wide) for _ in range(1 if config.tied else config.depth))
        self.last = nn.Linear(wide, 2)

    def logit(self, hidden: Float[Tensor, "*S d"]) -> Float[Tensor, "*S"]:
        """The logarithm of the odds."""
        x = F.rms_norm(hidden, hidden.shape[-1:], eps=self.config.layer.rms_eps)
        for i in range(self.config.depth):
            x = x + F.silu(self.blocks[0 if self.config.tied else i](x))
        both = self.last(x)
        return both[..., 1] - both[..., 0]

    def forward(self, hidden: Float[Tensor, "*S d"]) -> Float[Tensor, "*S"]:
        return self.logit(hidden).sigmoid()
