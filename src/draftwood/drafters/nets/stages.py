"""Heads on one feature as a model: stage k reads what stage k - 1 left and the token drafted since, and guesses the next.

    carry = f      carry, y_k = step(k, carry, E[x_k])      logits_k = W[ids] y_k      x_0 is the root

Medusa leaves the feature as it is and reads no token, Hydra collects embeddings behind it, the MLP speculator turns it
into a state.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.protocols import Model
from draftwood.drafters.nets.hydra import HydraNet
from draftwood.drafters.nets.medusa import MedusaNet
from draftwood.drafters.nets.mlp import MLPNet


class StageModel:
    """A MedusaNet, HydraNet or MLPNet beside its target, whose embedding and head rows it shares."""

    def __init__(self, net: Any, target: Model, ids: Int[Tensor, "W"] | None) -> None:
        self.net, self.target, self.ids = net, target, ids

    @property
    def stages(self) -> int:
        return self.net.config.stages

    @property
    def reads_tokens(self) -> bool:
        """False: all nodes of a level have the same logits."""
        return not isinstance(self.net, MedusaNet)

    @torch.inference_mode()
    def start(self, f: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """What the first stage reads: the feature of the position that produced the root."""
        f = f.to(next(self.net.parameters()).dtype)
        return self.net.start(f) if isinstance(self.net, MLPNet) else f

    @torch.inference_mode()
    def step(
        self, index: int, carry: Float[Tensor, "n C"], tokens: Int[Tensor, "n"]
    ) -> tuple[Float[Tensor, "n C"], Float[Tensor, "n H"]]:
        """(what the next stage reads, what the head rows multiply)."""
        net = self.net
        if isinstance(net, MedusaNet):
            return carry, net.head(index, carry)
        e = self.target.embed(tokens).to(carry.dtype)
        if isinstance(net, MLPNet):
            carry = net.step(index, carry, e)
            return carry, net.read(carry)
        assert isinstance(net, HydraNet)
        carry = torch.cat([carry, e], dim=-1)
        f, *path = carry.split(net.config.target_hidden, dim=-1)
        return carry, net.head(index, f, path)

    @torch.inference_mode()
    def logits(self, y: Float[Tensor, "*S H"], columns: Int[Tensor, "W"] | None) -> Float[Tensor, "*S W"]:
        return self.target.head(y, ids=columns, norm=False)
