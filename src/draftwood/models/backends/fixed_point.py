"""Batch-invariant attention and gate on stock operations: sums of whole numbers, which are exact in any order.

Queries, keys and values are rounded to a grid and weights to whole numbers, so that every product and every partial sum
below fits into the 53 bits of a float64. A token's result has the same bits alone, in a tree, in a chunk or in a batch.

    number        grid     at most    whole number below
    q, k          2^-12       1024    2^22                 q·k       2^44 * width      <= 2^53
    v             2^-16        256    2^24
    exp           2^-30          1    2^30                 sum       2^30 * context    <= 2^53
    weight        2^-27          1    2^27                 weight·v  2^51 + context/2 of them
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.forward import ForwardInput, Segment
from draftwood.models.attention import Mask, torch_attention

WIDEST_HEAD = 2**9
_QK, _QK_LIMIT = 2.0**12, 2.0**22
_V, _V_LIMIT = 2.0**16, 2.0**24 - 1
_EXP, _WEIGHT = 2.0**30, 2.0**27


def fixed_point_attention(
    q: Float[Tensor, "T heads d"],
    k: Float[Tensor, "T kv d"],
    v: Float[Tensor, "T kv d"],
    keys: Float[Tensor, "slots kv capacity d"],
    values: Float[Tensor, "slots kv capacity d"],
    x: ForwardInput,
    segments: Sequence[Segment],
    masks: Sequence[Mask],
    cap: float | None = None,
) -> Float[Tensor, "T heads*d"]:
    """As `torch_attention`. The cache holds whole numbers: float32 has room for them."""
    q, k = _whole(q, _QK, _QK_LIMIT).double(), _whole(k, _QK, _QK_LIMIT)
    # A NaN entry shows in its key. Its value must be finite: 0 * nan would reach tokens that do not attend to it.
    v = _whole(v.nan_to_num(0.0), _V, _V_LIMIT)
    return torch_attention(q, k, v, keys, values, x, segments, masks, partial(_mix, cap=cap)).float()


def _mix(
    q: Float[Tensor, "1 kv n d"],
    k: Float[Tensor, "1 kv context d"],
    v: Float[Tensor, "1 kv context d"],
    mask: Mask,
    cap: float | None = None,
) -> Float[Tensor, "1 kv n d"]:
    score = q @ k.double().transpose(-1, -2)
    score.mul_(q.shape[-1] ** -0.5 / _QK**2)
    if cap is not None:
        # From exp, which has one function for all places; tanh has another one for the numbers behind the last full vector.
        score = 1 - 2 / score.mul_(2 / cap).exp_().add_(1)
        score.mul_(cap)
    if mask is not None:
        # Filled, not added: NaN + -inf is NaN, so a NaN key would reach tokens that do not attend to it.
        score.masked_fill_(mask < 0, -torch.inf)
    weight = score.sub_(score.amax(-1, keepdim=True)).exp_().mul_(_EXP).round_()
    weight.mul_(_WEIGHT / weight.sum(-1, keepdim=True)).round_()
    return (weight @ v.double()).div_(weight.sum(-1, keepdim=True).mul_(_V))


def _whole(x: Tensor, grid: float, limit: float) -> Tensor:
    return (x * grid).round_().clamp_(-limit, limit)


def exp_gate(gate: Float[Tensor, "T I"], up: Float[Tensor, "T I"]) -> Float[Tensor, "T I"]:
    """silu(gate) * up. Not with F.silu: it computes the numbers behind the last full vector by another function, so a
    result would depend on its place in the pass. exp and the exact operations around it have one function each."""
    return gate.neg().exp_().add_(1).reciprocal_().mul_(gate).mul_(up)


def exp_gelu_gate(gate: Float[Tensor, "T I"], up: Float[Tensor, "T I"]) -> Float[Tensor, "T I"]:
    """gelu(gate) * up with the approximation by tanh, which is a sigmoid of twice its argument."""
    inner = (gate * gate).mul_(0.044715).add_(1).mul_(gate).mul_(-2 * 0.7978845608028654)
    return inner.exp_().add_(1).reciprocal_().mul_(gate).mul_(up)
