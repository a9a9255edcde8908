"""A small language model on the target's own vocabulary: the target's embedding and head rows, through a projection each.

    h = enter(E[x])    layers    logits = W leave(norm(h))

The projections can be folded into the tables once, so a step costs what its own width costs.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.modules.layer import DraftLayer, norm


class LanguageNet(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d = config.layer.hidden_size
        self.enter = nn.Linear(config.target_hidden, d, bias=False)
        self.attention_norms = nn.ParameterList(torch.ones(d) for _ in range(config.layer.num_layers))
        self.layers = nn.ModuleList(DraftLayer(config.layer, d) for _ in range(config.layer.num_layers))
        self.norm = nn.Parameter(torch.ones(d))
        self.leave = nn.Linear(d, config.target_hidden, bias=False)

    def attention_input(self, index: int, h: Float[Tensor, "*S d"]) -> Float[Tensor, "*S d"]:
        return norm(h, self.attention_norms[index], self.config.layer.rms_eps)

    def read(self, h: Float[Tensor, "*S d"]) -> Float[Tensor, "*S H"]:
        """What the target's head rows multiply."""
        return self.leave(norm(h, self.norm, self.config.layer.rms_eps))
