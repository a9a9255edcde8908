"""A semi-autoregressive net: k features in one pass. An LSTM reads embeddings beside features, then one layer.

    z_t = [E[x_{t+1}], f_t]        s_t = LSTM(z_t, s_{t-1}), two levels        g_t = layer(s_t)
    g_t stands for f_{t+k}; logits = W g_t

The layer's mask is relaxed: indices stand in blocks of k, and each attends to its own whole block and to all blocks before.

    k = 2    index   0 1 2 3 4
         0         1 1 . . .
         1         1 1 . . .
         2         1 1 1 1 .
         3         1 1 1 1 .
         4         1 1 1 1 1

Keys and values of an index follow from the LSTM alone, whatever block it stands in.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.modules.layer import DraftLayer, norm

LEVELS = 2  # of the LSTM
PARTS = 2 * LEVELS  # of its state: output and cell of each level


class SemiNet(nn.Module):
    """`config.stages` is k. As wide as the target, whose embedding and head rows it shares."""

    own_head = False

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        d = config.layer.hidden_size
        self.lstm = nn.LSTM(2 * d, d, LEVELS, batch_first=True)
        self.attention_norm = nn.Parameter(torch.ones(d))
        self.layer = DraftLayer(config.layer, d)

    @property
    def layers(self) -> list[DraftLayer]:
        return [self.layer]

    def fuse(self, features: list[Float[Tensor, "*S H"]]) -> Float[Tensor, "*S H"]:
        """The feature itself."""
        return features[0]

    def states(self, z: Float[Tensor, "B T wide"], state: Float[Tensor, "B parts d"]) -> Float[Tensor, "B T parts d"]:
        """The state of the LSTM after every index: what it put out and its cell, level by level."""
        found: list[Tensor] = []
        for level in range(LEVELS):
            own = (getattr(self.lstm, f"{name}_l{level}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            into, back, bias, more = own
            gates = F.linear(z, into, bias + more)
            h, c = state[:, 2 * level], state[:, 2 * level + 1]
            outputs: list[Tensor] = []
            cells: list[Tensor] = []
            for t in range(z.shape[1]):
                i, f, g, o = (gates[:, t] + F.linear(h, back)).chunk(4, dim=-1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outputs.append(h)
                cells.append(c)
            z = torch.stack(outputs, dim=1)
            found += [z, torch.stack(cells, dim=1)]
        return torch.stack(found, dim=2)

    def project(
        self, s: Float[Tensor, "T d"], cos: Tensor, sin: Tensor
    ) -> tuple[Float[Tensor, "T heads w"], Float[Tensor, "T kv w"], Float[Tensor, "T kv w"]]:
        """Queries, keys and values of what the LSTM put out."""
        return self.layer.project(norm(s, self.attention_norm, self.config.layer.rms_eps), cos, sin)


def relaxed(length: int, k: int, device: torch.device | str = "cpu") -> Bool[Tensor, "T T"]:
    """The mask over indices whose first block begins at 0."""
    block = torch.arange(length, device=device) // k
    return block[:, None] >= block
