"""A block net: all tokens of a block in one pass, from the root, masks, and the target's fused features of the text.

    c_t = norm_c(fc([h^a_t, h^b_t, ..]))                     one for each token before the root
    h   = [E[root], m_1, .., m_k]                            the block; m_i are learned
    h   = layer(h; keys and values of c_0 .. c_n and h)      for each layer; the block attends to all of itself
    logits of the i-th token behind the root = W norm(h_i)

Text has keys and values in every layer, made from c alone, so it passes through no layer and its entries never change.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.modules.layer import DraftLayer, norm

SPREAD = 0.02  # of the masks before training

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries, keys, values) -> what each token's heads read."""


class BlockNet(nn.Module):
    """`config.stages` masks; as wide as the target, whose embedding and head rows it shares."""

    own_head = False

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d, layers = config.layer.hidden_size, config.layer.num_layers
        self.fc = nn.Linear(config.target_hidden * len(config.taps), d, bias=False)
        if config.norm_features:
            self.feature_norms = nn.ParameterList(torch.ones(config.target_hidden) for _ in config.taps)
        self.fused_norm = nn.Parameter(torch.ones(d))
        self.masks = nn.ParameterList(SPREAD * torch.randn(d) for _ in range(config.stages))
        self.attention_norms = nn.ParameterList(torch.ones(d) for _ in range(layers))
        self.layers = nn.ModuleList(DraftLayer(config.layer, d) for _ in range(layers))
        self.norm = nn.Parameter(torch.ones(d))

    def fuse(self, features: list[Float[Tensor, "*S H"]]) -> Float[Tensor, "*S d"]:
        """The target's layers as one feature."""
        eps = self.config.layer.rms_eps
        if self.config.norm_features:
            features = [norm(x, w, eps) for x, w in zip(features, self.feature_norms, strict=True)]
        return norm(self.fc(torch.cat(features, dim=-1)), self.fused_norm, eps)

    def enter(self, e: Float[Tensor, "*S d"]) -> Float[Tensor, "*S n d"]:
        """The block behind a root, by its embedding."""
        masks = torch.stack(list(self.masks)).to(e.dtype)
        return torch.cat([e[..., None, :], masks.expand(*e.shape[:-1], -1, -1)], dim=-2)

    def project(
        self, index: int, h: Float[Tensor, "T d"], cos: Tensor, sin: Tensor
    ) -> tuple[Float[Tensor, "T heads w"], Float[Tensor, "T kv w"], Float[Tensor, "T kv w"]]:
        """Queries, keys and values of one layer."""
        return self._layer(index).project(norm(h, self.attention_norms[index], self.config.layer.rms_eps), cos, sin)

    def tail(self, index: int, h: Float[Tensor, "*S d"], mixed: Float[Tensor, "*S A"]) -> Float[Tensor, "*S d"]:
        """What follows the attention of one layer."""
        return self._layer(index).tail(h, mixed)

    def run(
        self, h: Float[Tensor, "T d"], in_block: Bool[Tensor, "T 1"], cos: Tensor, sin: Tensor, attend: Attend
    ) -> Float[Tensor, "T d"]:
        """All layers over blocks and text: text enters each of them as it came."""
        text = h
        for i in range(len(self.layers)):
            h = torch.where(in_block, self.tail(i, h, attend(i, *self.project(i, h, cos, sin))), text)
        return h

    def read(self, h: Float[Tensor, "*S d"]) -> Float[Tensor, "*S d"]:
        """What the target's head rows multiply."""
        return norm(h, self.norm, self.config.layer.rms_eps)

    def _layer(self, index: int) -> DraftLayer:
        layer = self.layers[index]
        assert isinstance(layer, DraftLayer)
        return layer
