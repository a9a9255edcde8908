"""A net that says whether drafting goes on: from a node's last hidden state to the chance that its child is kept.

    norm(h)    H -> wide -> wide / 2 -> 1    ReLU between, a sigmoid at the end

The norm has no weights of its own: those of the draft's last norm would only scale the columns of the first product.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig


class DecisionNet(nn.Module):
    """`config.layer` has the draft's hidden size, and the first inner width as the size of an MLP."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        wide = config.layer.intermediate_size
        self.first = nn.Linear(config.layer.hidden_size, wide)
        self.second = nn.Linear(wide, max(wide // 2, 1))
        self.last = nn.Linear(max(wide // 2, 1), 1)

    def logit(self, hidden: Float[Tensor, "*S d"]) -> Float[Tensor, "*S"]:
        x = F.rms_norm(hidden, hidden.shape[-1:], eps=self.config.layer.rms_eps)
        return self.last(F.relu(self.second(F.relu(self.first(x)))))[..., 0]

    def forward(self, hidden: Float[Tensor, "*S d"]) -> Float[Tensor, "*S"]:
        return self.logit(hidden).sigmoid()
