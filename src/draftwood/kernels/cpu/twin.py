"""The kernels' arithmetic in plain torch: slow, and easy to believe. Tests hold the compiled code against it.

value = scale * (hi + lo / 128)      32 columns share a scale; lo only where the block stands out of its row
"""

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 32
STANDS_OUT = 5.0  # times the root mean square of the row
NOTHING = 1e-30  # a block below this is zeros


def rounded(x: Float[Tensor, "T C"]) -> Float[Tensor, "T C"]:
    """What is left of rows of activations, in float64. A row that is not numbers stays none, and touches no other."""
    x = x.float()
    rows, columns = x.shape
    square = x.double().square().sum(1).float()
    limit = STANDS_OUT * (square / columns).sqrt()
    blocks = torch.nn.functional.pad(x, (0, -columns % BLOCK)).view(rows, -1, BLOCK)
    top = blocks.abs().amax(-1, keepdim=True)
    some = top > NOTHING
    # Not `127 / top`: torch makes that a reciprocal and a product, which is another float.
    digits = blocks * torch.where(some, torch.full_like(top, 127) / top, 0)
    hi = digits.round()
    lo = torch.where(top > limit[:, None, None], ((digits - hi) * 128).round(), 0)
    scale = torch.where(some, top * (torch.ones(()) / 127), 0)
    value = scale.double() * (hi.double() + lo.double() / 128)
    value[~square.isfinite()] = torch.nan
    return value.flatten(1)[:, :columns]


def product(x: Float[Tensor, "T C"], weight: Float[Tensor, "R C"]) -> Float[Tensor, "T R"]:
    """x W^T of rounded rows, in float64."""
    return rounded(x) @ weight.double().T
