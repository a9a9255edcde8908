"""Losses: functions of aligned tensors.

Rows of h and f are positions. f is the target's feature and R its LM head, h the draft's output and W its LM head:

    P = softmax(f R^T)    Q = softmax(h W^T)

A vocabulary is large, so no tensor of shape [positions, vocabulary] outlives a chunk of positions.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHUNK = 8192  # positions whose logits exist at the same time
_CPU_CHUNK = 512


# The goal of a chunk of positions: given log Q, returns the best token of each position and sum P log Q, and overwrites
# log Q with Q - P, the gradient of the loss by the logits, to save a tensor of this size.
_Goal = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


class _CrossEntropy(torch.autograd.Function):
    """Computes the gradient together with the loss: Q - P per position, never stored beyond its chunk."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, W: Tensor, goal: _Goal, need: tuple[bool, bool], kind: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(kind, torch.float32)  # for sums over the vocabulary
        w = W.detach().to(kind)
        dh = torch.zeros_like(h) if need[0] else None
        dw = torch.zeros(W.shape, dtype=wide, device=W.device) if need[1] else None
        loss = torch.zeros((), dtype=wide, device=h.device)
        hits = torch.zeros((), dtype=torch.float32, device=h.device)
        count = max(len(h), 1)
        for at in chunks(h):
            part = h[at].detach().to(kind)
            z = part @ w.T
            slope = torch.log_softmax(z, dim=-1, dtype=wide)
            best, gain = goal(at, slope)
            loss -= gain
            hits += (z.argmax(-1) == best).sum()
            slope = slope.to(kind)
            if dh is not None:
                dh[at] = slope @ w / count
            if dw is not None:
                dw += (slope.T @ part).to(wide) / count
        ctx.save_for_backward(*(x for x in (dh, dw) if x is not None))
        ctx.need = need
        share = hits / count
        ctx.mark_non_differentiable(share)
        return loss / count, share

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(ctx.saved_tensors)
        dh = saved.pop(0) * above[0] if ctx.need[0] else None
        dw = saved.pop(0) * above[0] if ctx.need[1] else None
        return dh, dw, None, None, None


def chunks(h: Float[Tensor, "N d"]) -> list[slice]:
    """Positions whose logits may exist at the same time."""
    size = CHUNK if h.is_cuda else _CPU_CHUNK
    return [slice(i, i + size) for i in range(0, len(h), size)]


def soft_cross_entropy(
    h: Float[Tensor, "N d"], W: Float[Tensor, "V d"], f: Float[Tensor, "N e"], R: Float[Tensor, "V e"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """-mean sum_v P(v) log Q(v), and the share of positions where P and Q have the same best token."""
    r = R.detach().to(f.dtype)

    def goal(at: slice, log_q: Tensor) -> tuple[Tensor, Tensor]:
        teacher = f[at].detach() @ r.T
        p = torch.softmax(teacher, dim=-1, dtype=log_q.dtype)
        gain = torch.dot(p.flatten(), log_q.flatten())
        log_q.exp_().sub_(p)
        return teacher.argmax(-1), gain

    return _cross_entropy(h, W, goal, f.dtype)


def hard_cross_entropy(
    h: Float[Tensor, "N d"], W: Float[Tensor, "V d"], label: Int[Tensor, "N"], kind: torch.dtype = torch.float32
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """-mean log Q(label), and the share of positions whose best token is the label."""

    def goal(at: slice, log_q: Tensor) -> tuple[Tensor, Tensor]:
        own = label[at, None]
        gain = log_q.gather(1, own).sum()
        log_q.exp_().scatter_add_(1, own, torch.full_like(own, -1, dtype=log_q.dtype))
        return label[at], gain

    return _cross_entropy(h, W, goal, kind)


def aligned_cross_entropy(
    h: Float[Tensor, "N d"],
    W: Float[Tensor, "V d"],
    f: Float[Tensor, "N e"],
    R: Float[Tensor, "V e"],
    label: Int[Tensor, "N"],
    *,
    soft: float,
    top: float,
    most: int,
    near: int,
) -> tuple[Float[Tensor, ""], Bool[Tensor, "N"], Bool[Tensor, "N"]]:
    """-mean (soft sum_v P(v) log Q(v) + top sum_v P(v) log Q(v) over the `most` most probable tokens of P). Beside it: where
    P and Q have the same best token, and where the label (-1: none) is among the `near` best of Q."""
    r = R.detach().to(f.dtype)
    same, close = (torch.zeros(len(h), dtype=torch.bool, device=h.device) for _ in range(2))

    def goal(at: slice, log_q: Tensor) -> tuple[Tensor, Tensor]:
        teacher = f[at].detach() @ r.T
        p = torch.softmax(teacher, dim=-1, dtype=log_q.dtype)
        same[at] = log_q.argmax(-1) == teacher.argmax(-1)
        close[at] = among(log_q, label[at], near)
        gain = soft * torch.dot(p.flatten(), log_q.flatten())
        best = p.topk(min(most, p.shape[-1]), dim=-1)
        gain = gain + top * (best.values * log_q.gather(1, best.indices)).sum()
        log_q.exp_().mul_(soft + top * best.values.sum(-1, keepdim=True))
        log_q.sub_(p, alpha=soft).scatter_add_(1, best.indices, -top * best.values)
        return teacher.argmax(-1), gain

    loss, _ = _cross_entropy(h, W, goal, f.dtype)
    return loss, same, close


def among(scores: Float[Tensor, "N V"], label: Int[Tensor, "N"], count: int) -> Bool[Tensor, "N"]:
    """Whether fewer than `count` tokens have a higher score than the label; False where there is none (-1)."""
    own = scores.gather(1, label.clamp_min(0)[:, None])
    return ((scores > own).sum(-1) < count) & (label >= 0)


def _cross_entropy(h: Tensor, W: Tensor, goal: _Goal, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    return _CrossEntropy.apply(h, W, goal, (h.requires_grad, W.requires_grad), kind)  # type: ignore[return-value]


def smooth_l1(g: Float[Tensor, "N d"], f: Float[Tensor, "N d"]) -> Float[Tensor, ""]:
    """Mean Huber distance over positions and components; 0 without positions."""
    wide = torch.promote_types(f.dtype, torch.float32)
    return F.smooth_l1_loss(g.to(wide), f.to(wide), reduction="sum") / max(g.numel(), 1)


def shifted(x: Tensor, by: int) -> Tensor:
    """x[:, t + by] at index t; the last `by` columns are zero. [B T ...]"""
    if by == 0:
        return x
    return torch.cat([x[:, by:], torch.zeros_like(x[:, :by])], dim=1)


def inverse(keep: Int[Tensor, "W"], vocab_size: int) -> Int[Tensor, "V"]:
    """Index of every token id in `keep`, -1 if it is not there."""
    places = torch.full((vocab_size,), -1, dtype=torch.int64, device=keep.device)
    places[keep] = torch.arange(len(keep), device=keep.device)
    return places
