"""Muon: momentum whose update is orthogonalised, so that all singular values of the update are equal.

    M <- mu M + g      step = U V^T  of  g + mu M = U S V^T, by five Newton-Schulz iterations

The factor 0.2 sqrt(longer side) makes an update as large as AdamW's at the same rate. PyTorch's Muon computes in bfloat16
on every device; this one uses float32 on a CPU.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315  # of the quintic that pushes singular values towards 1
_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """For matrices only."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        if any(p.ndim != 2 for group in self.param_groups for p in group["params"]):
            raise ValueError("Muon trains matrices only")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                held = self.state[p].setdefault("momentum", torch.zeros_like(p))
                held.mul_(group["momentum"]).add_(p.grad)
                ahead = p.grad.add(held, alpha=group["momentum"])
                p.add_(orthogonal(ahead).to(p.dtype), alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


def orthogonal(g: Tensor) -> Tensor:
    """Nearly U V^T of g = U S V^T: singular values between about 0.7 and 1.2."""
    x = g.to(torch.bfloat16) if g.is_cuda else g
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(_ROUNDS):
        a = x @ x.T
        x = _A * x + torch.addmm(a, a, a, beta=_B, alpha=_C) @ x
    return x.T if tall else x
