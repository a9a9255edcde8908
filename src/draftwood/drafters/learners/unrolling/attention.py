"""Attention of an unrolled step: causal over the first step's keys, and at each index over a few keys of later steps.

Both parts share one softmax. A fused kernel computes the causal part and returns its log-sum-exp; the few keys are added:

    Z = Z_causal + sum_j exp(s_j)      out = (Z_causal out_causal + sum_j exp(s_j) v_j) / Z

In the backward pass the fused kernel recomputes its weights exp(s - log Z) from the output and the log-sum-exp it is given.
Given those of the whole softmax, it returns the gradients of the causal part of the whole.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

_flash: Any = torch.ops.aten


def unrolled_attention(
    q: Float[Tensor, "B heads T d"], keys: list[Float[Tensor, "B kv T d"]], values: list[Float[Tensor, "B kv T d"]]
) -> Float[Tensor, "B heads T d"]:
    """Causal over the first step's keys; a later step's keys are attended to at the same index only."""
    group = q.shape[1] // keys[0].shape[1]
    ks, vs = ([x.repeat_interleave(group, dim=1) for x in several] for several in (keys, values))
    if len(keys) == 1:
        return F.scaled_dot_product_attention(q, ks[0], vs[0], is_causal=True)
    if not fused(q):
        return masked(q, ks, vs)
    out: Any = _Unrolled.apply(q, ks[0], vs[0], torch.stack(ks[1:], dim=3), torch.stack(vs[1:], dim=3))
    return out


def fused(q: Tensor) -> bool:
    """Whether the fused kernels support this device and dtype."""
    if q.device.type == "cuda":
        return q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] % 8 == 0
    return q.device.type == "cpu"


def masked(q: Tensor, ks: list[Tensor], vs: list[Tensor]) -> Tensor:
    """The same with an attention mask over all keys: the reference, and for devices without the kernels."""
    length = q.shape[2]
    causal = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    own = torch.eye(length, dtype=torch.bool, device=q.device)
    mask = torch.cat([causal, *[own] * (len(ks) - 1)], dim=1)
    return F.scaled_dot_product_attention(q, torch.cat(ks, dim=2), torch.cat(vs, dim=2), attn_mask=mask)


class _Unrolled(torch.autograd.Function):
    """k and v of the first step [B heads T d], of the later ones [B heads T J d]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, later_k: Tensor, later_v: Tensor) -> Tensor:
        if q.is_cuda:
            first, total, *rest = _flash._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
            ctx.rest = rest[:6]  # inputs of the backward kernel
        else:
            first, total = _flash._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
        s = _scores(q, later_k, total.dtype)
        both = torch.cat([total[..., None], s], dim=-1).logsumexp(-1)
        weights = (s - both[..., None]).exp()
        out = first * (total - both).exp()[..., None] + (weights[..., None] * later_v).sum(3)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, later_k, later_v, out, both, weights)
        return out

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, ...]:
        q, k, v, later_k, later_v, out, both, weights = ctx.saved_tensors
        up = above[0].contiguous()
        if q.is_cuda:
            cum_q, cum_k, max_q, max_k, seed, offset = ctx.rest
            dq, dk, dv = _flash._scaled_dot_product_flash_attention_backward(
                up, q, k, v, out, both.contiguous(), cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset
            )
        else:
            # The kernel expects the memory layout in which it writes them.
            sums = both.transpose(1, 2).contiguous().transpose(1, 2)
            dq, dk, dv = _flash._scaled_dot_product_flash_attention_for_cpu_backward(up, q, k, v, out, sums, 0.0, True)
        wide = up.to(weights.dtype)[..., None, :]
        slope = (wide * later_v).sum(-1) - (up * out).sum(-1, dtype=weights.dtype)[..., None]
        slope = weights * slope * q.shape[-1] ** -0.5
        dq = (dq + (slope[..., None] * later_k).sum(3)).to(q.dtype)
        return dq, dk, dv, (slope[..., None] * q[..., None, :]).to(q.dtype), (weights[..., None] * wide).to(q.dtype)


def _scores(q: Tensor, later: Tensor, kind: torch.dtype) -> Tensor:
    """[B heads T J], in the kernel's accumulation dtype."""
    return (q[..., None, :].to(kind) * later).sum(-1) * q.shape[-1] ** -0.5
