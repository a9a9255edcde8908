"""EAGLE's head: predicts the target's next feature from this one and the next token's embedding.

    z = fc([E[x_{t+1}], f_t])      g_t = layer(z)      g_t stands for f_{t+1}; logits = W_target g_t

The layer has no norm before its attention, and there is no norm at the end: f is already normed. With a `depth` above 1
ordinary decoder layers follow it.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.modules.layer import DraftAttention, DraftLayer, NextLayer


class EagleNet(nn.Module):
    own_head = False  # logits come from the target's own rows

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d = config.layer.hidden_size
        self.fc = nn.Linear(2 * d, d, bias=config.bias)
        self.layer = DraftLayer(config.layer, d)
        self.more = nn.ModuleList(NextLayer(config.layer) for _ in range(config.depth - 1))

    @property
    def layers(self) -> list[DraftAttention]:
        return [self.layer, *self.more]  # type: ignore[list-item]

    def fuse(self, features: list[Float[Tensor, "*S H"]]) -> Float[Tensor, "*S H"]:
        """The feature itself."""
        return features[0]

    def enter(self, e: Float[Tensor, "*S H"], u: Float[Tensor, "*S H"]) -> tuple[Tensor, Tensor]:
        """Attention's input and the residual."""
        z = self.fc(torch.cat([e, u], dim=-1))
        return z, z

    def forward_feature(self, a: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """What the next step reads in place of a feature."""
        return a

    def read(self, a: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        """What the head rows multiply."""
        return a
