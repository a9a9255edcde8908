"""The kernels' arithmetic in plain torch, which the tests compare the compiled code with.

value = scale * (hi + lo / 128)      32 columns share a scale; lo only in blocks with outliers
"""

import torch
from jaxtyping import Float
from torch import Tensor

BLOCK = 32
OUTLIER = 5.0  # times the root mean square of a token's activations
ZERO = 1e-30  # a block below this is zeros


def rounded(x: Float[Tensor, "T C"]) -> Float[Tensor, "T C"]:
    """Activations after rounding, in float64, each token by itself. A token with inf or NaN becomes NaN."""
    x = x.float()
    tokens, columns = x.shape
    square = x.double().square().sum(1).float()
    limit = OUTLIER * (square / columns).sqrt()
    blocks = torch.nn.functional.pad(x, (0, -columns % BLOCK)).view(tokens, -1, BLOCK)
    top = blocks.abs().amax(-1, keepdim=True)
    some = top > ZERO
    # Not `127 / top`: torch computes that as a reciprocal and a product, which rounds differently.
    digits = blocks * torch.where(some, torch.full_like(top, 127) / top, 0)
    hi = digits.round()
    lo = torch.where(top > limit[:, None, None], ((digits - hi) * 128).round(), 0)
    scale = torch.where(some, top * (torch.ones(()) / 127), 0)
    value = scale.double() * (hi.double() + lo.double() / 128)
    value[~square.isfinite()] = torch.nan
    return value.flatten(1)[:, :columns]


def product(x: Float[Tensor, "T C"], weight: Float[Tensor, "R C"]) -> Float[Tensor, "T R"]:
    """x W^T of rounded activations, in float64."""
    return rounded(x) @ weight.double().T
