"""Nets behind an early exit: the target's hidden state after its first layers in, a distribution of the next token out.

    ExitNet         a = h + attention(norm_h(h))        logits = head(norm(a))
    ExitLayerNet    the same with the MLP of a decoder layer behind the attention
    ExitsNet        an ExitNet behind a shallow exit, and one behind a deeper one: one file, trained in one run

The head is the target's own. Index t reads the hidden state of token t alone: no embedding, and nothing of its own outputs.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.modules.layer import DraftAttention, DraftLayer, norm


class _Exit(nn.Module):
    """`layer`: what stands between the exit and the head."""

    own_head = False

    def __init__(self, config: HeadConfig, layer: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.hidden_norm = nn.Parameter(torch.ones(config.target_hidden))
        self.layer: Any = layer
        self.norm = nn.Parameter(torch.ones(config.target_hidden))

    @property
    def layers(self) -> list[DraftAttention]:
        return [self.layer]

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


class ExitsNet(nn.Module):
    """Only a container: `parts` of its config and weights are what is run."""

    own_head = False
    names = ("draft", "review")  # of its parts, in the order of the taps

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        for name, part in zip(self.names, parts(config), strict=True):
            self.add_module(name, ExitNet(part))


def parts(config: HeadConfig) -> list[HeadConfig]:
    """The configs of the nets behind each exit."""
    return [replace(config, kind="exit", taps=(tap,)) for tap in config.taps]
