"""Losses: small named functions on aligned tensors. They know shapes and nothing else.

Rows are positions that count. f is the target's feature, R the target's head rows, h the draft's, W its head rows:

    P = softmax(f R^T)    Q = softmax(h W^T)

A vocabulary is long, so nothing of shape [positions, vocabulary] outlives a chunk of positions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHUNK = 8192  # positions whose logits exist at the same time
_CPU_CHUNK = 512


class _SoftCrossEntropy(torch.autograd.Function):
    """The gradient is made together with the loss: Q - P per position, never stored beyond its chunk."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, W: Tensor, f: Tensor, R: Tensor, need: tuple[bool, bool], chunk: int
    ) -> tuple[Tensor, Tensor]:
        kind = f.dtype
        wide = torch.promote_types(kind, torch.float32)  # sums over a vocabulary need it
        w, r = W.detach().to(kind), R.detach().to(kind)
        dh = torch.zeros_like(h) if need[0] else None
        dw = torch.zeros(W.shape, dtype=wide, device=W.device) if need[1] else None
        loss = torch.zeros((), dtype=wide, device=h.device)
        hits = torch.zeros((), dtype=torch.float32, device=h.device)
        count = max(len(h), 1)
        for at in range(0, len(h), chunk):
            part = h[at : at + chunk].detach().to(kind)
            z = part @ w.T
            teacher = f[at : at + chunk].detach() @ r.T
            hits += (z.argmax(-1) == teacher.argmax(-1)).sum()
            p = torch.softmax(teacher, dim=-1, dtype=wide)
            log_q = torch.log_softmax(z, dim=-1, dtype=wide)
            loss -= torch.dot(p.flatten(), log_q.flatten())  # no third tensor of this size
            slope = log_q.exp_().sub_(p).to(kind)
            if dh is not None:
                dh[at : at + chunk] = slope @ w / count
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
        return dh, dw, None, None, None, None


def soft_cross_entropy(
    h: Float[Tensor, "N d"], W: Float[Tensor, "V d"], f: Float[Tensor, "N e"], R: Float[Tensor, "V e"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """-mean sum_v P(v) log Q(v), and the share of positions where both have the same best token."""
    chunk = CHUNK if h.is_cuda else _CPU_CHUNK
    wanted = (h.requires_grad, W.requires_grad)
    return _SoftCrossEntropy.apply(h, W, f, R, wanted, chunk)  # type: ignore[return-value]


class _HardCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, W: Tensor, label: Tensor, need: tuple[bool, bool], kind: torch.dtype, chunk: int
    ) -> tuple[Tensor, Tensor]:
        w = W.detach().to(kind)
        wide = torch.promote_types(kind, torch.float32)
        dh = torch.zeros_like(h) if need[0] else None
        dw = torch.zeros(W.shape, dtype=wide, device=W.device) if need[1] else None
        loss = torch.zeros((), dtype=wide, device=h.device)
        hits = torch.zeros((), dtype=torch.float32, device=h.device)
        count = max(len(h), 1)
        for at in range(0, len(h), chunk):
            part, own = h[at : at + chunk].detach().to(kind), label[at : at + chunk, None]
            z = (part @ w.T).to(wide)
            hits += (z.argmax(-1) == own[:, 0]).sum()
            log_q = torch.log_softmax(z, dim=-1)
            loss -= log_q.gather(1, own).sum()
            slope = log_q.exp_()
            slope.scatter_add_(1, own, torch.full_like(own, -1, dtype=slope.dtype))
            slope = slope.to(kind)
            if dh is not None:
                dh[at : at + chunk] = slope @ w / count
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
        return dh, dw, None, None, None, None


def hard_cross_entropy(
    h: Float[Tensor, "N d"], W: Float[Tensor, "V d"], label: Int[Tensor, "N"], kind: torch.dtype = torch.float32
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """-mean log Q(label), and the share of positions whose best token is the label."""
    chunk = CHUNK if h.is_cuda else _CPU_CHUNK
    return _HardCrossEntropy.apply(h, W, label, (h.requires_grad, W.requires_grad), kind, chunk)  # type: ignore[return-value]


def smooth_l1(g: Float[Tensor, "N d"], f: Float[Tensor, "N d"]) -> Float[Tensor, ""]:
    """Mean over positions and numbers of the Huber distance; 0 where there are none."""
    wide = torch.promote_types(f.dtype, torch.float32)
    return F.smooth_l1_loss(g.to(wide), f.to(wide), reduction="sum") / max(g.numel(), 1)


def shifted(x: Tensor, by: int) -> Tensor:
    """x[:, t + by] at index t; the last `by` columns are zero. [B T ...]"""
    if by == 0:
        return x
    return torch.cat([x[:, by:], torch.zeros_like(x[:, :by])], dim=1)


def within(ids: Int[Tensor, "*S"], columns: Int[Tensor, "V"]) -> Bool[Tensor, "*S"]:
    """Whether each id is kept; `columns[id]` is its place or -1."""
    return columns[ids] >= 0


def inverse(keep: Int[Tensor, "W"], vocab: int) -> Int[Tensor, "V"]:
    """Place of every id among the kept ones, -1 if it is not."""
    places = torch.full((vocab,), -1, dtype=torch.int64, device=keep.device)
    places[keep] = torch.arange(len(keep), device=keep.device)
    return places
