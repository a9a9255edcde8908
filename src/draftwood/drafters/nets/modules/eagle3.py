"""EAGLE-3's head: features of several layers fused, one layer that reads embedding and feature side by side.

    u = fc([h^a, h^b, h^c])    x = [norm_e(E[x_{t+1}]), norm_h(u)]    a = layer(x; residual u)    logits = head(norm(a))

While it drafts, a takes the place of u: the fusion is for the target's features alone.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.modules.layer import DraftAttention, DraftLayer, norm


class Eagle3Net(nn.Module):
    """With `target_rows` it has no rows of its own: nothing to store, and no token that it could not say."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d, wide = config.layer.hidden_size, config.target_hidden * len(config.taps)
        self.fc = nn.Linear(wide, d, bias=False)
        self.embed_norm = nn.Parameter(torch.ones(config.target_hidden))
        self.hidden_norm = nn.Parameter(torch.ones(d))
        self.layer = DraftLayer(config.layer, config.target_hidden + d)
        self.norm = nn.Parameter(torch.ones(d))
        if self.own_head:
            self.lm_head = nn.Linear(d, config.rows, bias=False)
        if config.norm_features:
            self.feature_norms = nn.ParameterList(torch.ones(config.target_hidden) for _ in config.taps)
        if config.norm_fused:
            self.fused_norm = nn.Parameter(torch.ones(wide))

    @property
    def layers(self) -> list[DraftAttention]:
        return [self.layer]

    @property
    def own_head(self) -> bool:
        return not self.config.target_rows

    def fuse(self, features: list[Float[Tensor, "*S H"]]) -> Float[Tensor, "*S d"]:
        """The target's layers as one feature."""
        eps = self.config.layer.rms_eps
        if self.config.norm_features:
            features = [norm(x, w, eps) for x, w in zip(features, self.feature_norms, strict=True)]
        wide = torch.cat(features, dim=-1)
        return self.fc(norm(wide, self.fused_norm, eps) if self.config.norm_fused else wide)

    def enter(self, e: Float[Tensor, "*S H"], u: Float[Tensor, "*S d"]) -> tuple[Tensor, Tensor]:
        eps = self.config.layer.rms_eps
        feature = norm(u, self.hidden_norm, eps)
        x = torch.cat([norm(e, self.embed_norm, eps), feature], dim=-1)
        return x, feature if self.config.norm_before_residual else u

    def forward_feature(self, a: Float[Tensor, "*S d"]) -> Float[Tensor, "*S d"]:
        return self.read(a) if self.config.norm_output else a

    def read(self, a: Float[Tensor, "*S d"]) -> Float[Tensor, "*S d"]:
        return norm(a, self.norm, self.config.layer.rms_eps)
