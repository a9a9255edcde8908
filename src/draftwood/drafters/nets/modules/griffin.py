"""GRIFFIN's head: EAGLE's, with a fusion that reads the token twice, and two outputs instead of one.

    z = fc([E[x_{t+1}], f_t])      z' = z + side_down SiLU(side_up [norm_s(norm_z(z)), norm_s(E[x_{t+1}])])
    [predict_t, regress_t] = layer(z')      logits = W_target predict_t      regress_t stands for f_{t+1} in the next step

The layer has no norm before its attention; its last product is twice as wide, and both halves have the same residual.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.modules.layer import DraftAttention, DraftLayer, norm


class GriffinNet(nn.Module):
    own_head = False  # logits come from the target's own rows

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d, inner, bias = config.layer.hidden_size, config.layer.intermediate_size, config.layer.mlp_bias
        self.fc = nn.Linear(2 * d, d, bias=config.bias)
        self.fused_norm = nn.Parameter(torch.ones(d))  # norm_z
        self.side_norm = nn.Parameter(torch.ones(d))  # norm_s
        self.side_up = nn.Linear(2 * d, inner, bias=bias)
        self.side_down = nn.Linear(inner, d, bias=bias)
        self.layer = DraftLayer(config.layer, d, outputs=2)

    @property
    def layers(self) -> list[DraftAttention]:
        return [self.layer]

    def fuse(self, features: list[Float[Tensor, "*S H"]]) -> Float[Tensor, "*S H"]:
        """The feature itself."""
        return features[0]

    def enter(self, e: Float[Tensor, "*S H"], u: Float[Tensor, "*S H"]) -> tuple[Tensor, Tensor]:
        """Attention's input and the residual."""
        eps = self.config.layer.rms_eps
        z = self.fc(torch.cat([e, u], dim=-1))
        both = norm(norm(z, self.fused_norm, eps), self.side_norm, eps), norm(e, self.side_norm, eps)
        z = z + self.side_down(F.silu(self.side_up(torch.cat(both, dim=-1))))
        return z, z

    def forward_feature(self, a: Float[Tensor, "*S O"]) -> Float[Tensor, "*S H"]:
        """`regress`: what the next step reads in place of a feature."""
        return a.chunk(2, dim=-1)[1]

    def read(self, a: Float[Tensor, "*S O"]) -> Float[Tensor, "*S H"]:
        """`predict`: what the head rows multiply."""
        return a.chunk(2, dim=-1)[0]
