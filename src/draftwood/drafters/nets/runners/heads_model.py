"""Heads on one feature as a model: stage k reads what stage k - 1 left and the token drafted since, and guesses the next.

    carry = f      carry, y_k = step(k, carry, E[x_k])      logits_k = W[ids] y_k      x_0 is the root

Medusa leaves the feature as it is and reads no token, Hydra collects embeddings behind it, the MLP speculator turns it
into a state. With tables of their own, they use those instead of the target's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.protocols import Runner
from draftwood.drafters.nets.modules.hydra import HydraNet
from draftwood.drafters.nets.modules.medusa import MedusaNet, MedusaTablesNet
from draftwood.drafters.nets.modules.mlp import MLPNet, MLPTablesNet
from draftwood.drafters.nets.runners.runner import places


class StageModel:
    """A MedusaNet, HydraNet or MLPNet beside its target, whose embedding and head rows it shares, or one with tables."""

    def __init__(self, net: Any, target: Runner, ids: Int[Tensor, "W"] | None) -> None:
        self.net, self.target, self.ids = net, target, ids
        self.stages: int = net.config.stages
        self.reads_tokens = not isinstance(
            net, MedusaNet | MedusaTablesNet
        )  # False: a level's nodes have the same logits

    @torch.inference_mode()
    def start(self, f: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        """What the first stage reads: the feature of the position that produced the root."""
        f = f.to(next(self.net.parameters()).dtype)
        return self.net.start(f) if isinstance(self.net, MLPNet | MLPTablesNet) else f

    @torch.inference_mode()
    def step(
        self, index: int, carry: Float[Tensor, "n C"], tokens: Int[Tensor, "n"]
    ) -> tuple[Float[Tensor, "n C"], Float[Tensor, "n H"]]:
        """(what the next stage reads, what the head rows multiply)."""
        net = self.net
        if isinstance(net, MedusaNet | MedusaTablesNet):
            return carry, net.head(index, carry)
        if isinstance(net, MLPTablesNet):
            carry = net.step(index, carry, tokens)
            return carry, carry
        e = self.target.embed(tokens).to(carry.dtype)
        if isinstance(net, MLPNet):
            carry = net.step(index, carry, e)
            return carry, net.read(carry)
        assert isinstance(net, HydraNet)
        carry = torch.cat([carry, e], dim=-1)
        f, *path = carry.split(net.config.target_hidden, dim=-1)
        return carry, net.head(index, f, path)

    def outputs(self, start: Float[Tensor, "n C"], roots: Int[Tensor, "n"]) -> Float[Tensor, "n stages H"]:
        """What the head rows multiply, of all stages, where none reads a drafted token."""
        return torch.stack([self.step(k, start, roots)[1] for k in range(self.stages)], dim=1)

    @torch.inference_mode()
    def logits(
        self, y: Float[Tensor, "*S H"], columns: Int[Tensor, "W"] | None, stage: Int[Tensor, "*S"] | None = None
    ) -> Float[Tensor, "*S W"]:
        """`stage`: which one left each y; only heads with tables of their own ask."""
        if not isinstance(self.net, MedusaTablesNet | MLPTablesNet):
            return self.target.head(y, ids=columns, norm=False)
        assert stage is not None
        tables = self.net.rows if isinstance(self.net, MedusaTablesNet) else self.net.head
        found = y.new_empty(*y.shape[:-1], tables.shape[1] if columns is None else len(columns))
        for k in stage.unique().tolist():
            table = tables[min(k, len(tables) - 1)]  # one for all stages, or one for each
            found[stage == k] = F.linear(y[stage == k], table if columns is None else table[places(self.ids, columns)])
        return found
