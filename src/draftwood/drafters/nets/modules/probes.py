"""Probes: vectors that ride behind a token through the frozen target, and an adapter on what the target makes of them.

    known    x_0 .. x_t            probes   s_1 .. s_k at positions t + 1 .. t + k, each behind the one before
    f_t      feature of x_t        g_i      feature of s_i; it knows x_0 .. x_t, and which position is asked for
    root     x_{t+1}, which the target emits after x_t and no probe has read

    y_i = g_i + B_i SiLU(A_i [g_i, f_t, norm(E[x_{t+1}])] + b_i)        logits of x_{t+1+i} = head(y_i)

The adapter runs after the target's last layer, on probes alone. B_i starts at zero, so an untrained adapter says what the
target says behind the probe.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.config import HeadConfig


class ProbesNet(nn.Module):
    """`stages` probes; the adapter's inner width is the layer's `intermediate_size`."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d, k, inner = config.target_hidden, config.stages, config.layer.intermediate_size
        self.vectors = nn.Parameter(torch.zeros(k, d))
        self.down = nn.Parameter(torch.randn(k, inner, 3 * d) / (3 * d) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(k, inner))
        self.up = nn.Parameter(torch.zeros(k, d, inner))

    def read(
        self, g: Float[Tensor, "n k H"], f: Float[Tensor, "n H"], e: Float[Tensor, "n H"]
    ) -> Float[Tensor, "n k H"]:
        """What the target's head rows multiply. `e`: the embedding of the root."""
        kind, stages = g.dtype, g.shape[1]
        e = F.rms_norm(e.to(kind), e.shape[-1:], eps=self.config.layer.rms_eps)
        shared = torch.cat([f.to(kind), e], dim=-1)[:, None].expand(-1, stages, -1)
        x = torch.cat([g, shared], dim=-1).transpose(0, 1)  # [k n 3H]
        inside = torch.baddbmm(self.bias.to(kind)[:, None], x, self.down.to(kind).transpose(1, 2))
        return g + torch.bmm(F.silu(inside), self.up.to(kind).transpose(1, 2)).transpose(0, 1)


class ProbesModel:
    """The net beside its target, whose embedding and head rows it shares. A sequence starts with the features of its node
    and of the probes behind it."""

    reads_tokens = False  # drafted ones

    def __init__(self, net: ProbesNet, target: Runner, ids: Int[Tensor, "W"] | None) -> None:
        self.net, self.target, self.ids = net, target, ids
        self.stages: int = net.config.stages

    @property
    def vectors(self) -> Float[Tensor, "stages H"]:
        return self.net.vectors.detach()

    @torch.inference_mode()
    def outputs(self, start: Float[Tensor, "n places H"], roots: Int[Tensor, "n"]) -> Float[Tensor, "n stages H"]:
        return self.net.read(start[:, 1:], start[:, 0], self.target.embed(roots))

    def step(
        self, index: int, carry: Float[Tensor, "n places H"], tokens: Int[Tensor, "n"]
    ) -> tuple[Float[Tensor, "n places H"], Float[Tensor, "n H"]]:
        """One stage alone."""
        return carry, self.outputs(carry, tokens)[:, index]

    @torch.inference_mode()
    def logits(
        self, y: Float[Tensor, "*S H"], columns: Int[Tensor, "W"] | None, stage: Int[Tensor, "*S"] | None = None
    ) -> Float[Tensor, "*S W"]:
        return self.target.head(y, ids=columns, norm=False)
