"""What the MLP's gate does to its other half, by the name of the activation."""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def silu_gate(gate: Float[Tensor, "T I"], up: Float[Tensor, "T I"]) -> Float[Tensor, "T I"]:
    return F.silu(gate) * up


def gelu_gate(gate: Float[Tensor, "T I"], up: Float[Tensor, "T I"]) -> Float[Tensor, "T I"]:
    return F.gelu(gate, approximate="tanh") * up


GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"silu": silu_gate, "gelu_tanh": gelu_gate}
