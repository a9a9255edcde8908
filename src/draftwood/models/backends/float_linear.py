"""The float backend: every linear layer as one plain product. Other backends are parity-tested against it."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class FloatLinear(nn.Module):
    """y = x W^T + b in the dtype of W. Not batch-invariant: last bits may depend on how many tokens run together."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, "out"] | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Float[Tensor, "*S in"]) -> Float[Tensor, "*S out"]:
        return F.linear(x, self.weight, self.bias)

    def rows(self, x: Float[Tensor, "*S in"], ids: Int[Tensor, "W"]) -> Float[Tensor, "*S W"]:
        """Only the outputs of these rows of W."""
        return F.linear(x, self.weight[ids], None if self.bias is None else self.bias[ids])

    def take(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S in"]:
        """These rows of W, as an embedding."""
        return F.embedding(ids, self.weight)
