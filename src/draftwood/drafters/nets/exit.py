"""Nets behind an early exit: the target's hidden state after its first layers in, a distribution of the next token out.

    ExitNet         a = h + attention(norm_h(h))        logits = head(norm(a))
    ExitLayerNet    the same with the MLP of a decoder layer behind the attention

The head is the target's own. Index t reads the hidden state of token t alone: no embedding, and nothing of its own outputs.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.config import HeadConfig
from draftwood.drafters.nets.layer import DraftAttention, DraftLayer, norm


class _Exit(nn.Module):
    """`layer`: what stands between the exit and the head."""

    own_head = False

    def __init__(self, config: HeadConfig, layer: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.hidden_norm = nn.Parameter(torch.ones(config.target_hidden))
        self.layer: Any = layer
        self.norm = nn.Parameter(torch.ones(config.target_hidden))

    def fuse(self, features: list[Float[Tensor, "*S H"]]) -> Float[Tensor, "*S H"]:
        """One tap, as it is."""
        (hidden,) = features
        return hidden

    def enter(self, e: Float[Tensor, "*S H"], u: Float[Tensor, "*S H"]) -> tuple[Tensor, Tensor]:
        """The input of attention, and the residual. The embedding `e` is not read."""
        return norm(u, self.hidden_norm, self.config.layer.rms_eps), u

    def forward_feature(self, a: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        return a

    def read(self, a: Float[Tensor, "*S H"]) -> Float[Tensor, "*S H"]:
        return norm(a, self.norm, self.config.layer.rms_eps)


class ExitNet(_Exit):
    """Attention without an MLP."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config, DraftAttention(config.layer, config.target_hidden))


class ExitLayerNet(_Exit):
    """A whole decoder layer."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config, DraftLayer(config.layer, config.target_hidden))
