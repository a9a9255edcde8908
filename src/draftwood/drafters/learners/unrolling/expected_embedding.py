"""The mean embedding of a distribution over the vocabulary, which can be trained through without drawing a token.

    y = softmax(h W^T) E      h: outputs, W: rows of the LM head, E: embeddings of the same tokens

Computed by chunks of positions, in the backward pass too, so that no tensor [positions, vocabulary] is stored.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.train.objectives import chunks


def expected_embedding(
    h: Float[Tensor, "N d"], W: Float[Tensor, "V d"], E: Float[Tensor, "V e"]
) -> Float[Tensor, "N e"]:
    """Gradients reach h alone."""
    return _Expected.apply(h, W, E)  # type: ignore[return-value]


class _Expected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, W: Tensor, E: Tensor) -> Tensor:
        found = [p @ E for _, p in _distributions(h, W)]
        y = torch.cat(found) if found else h.new_zeros(0, E.shape[1])
        ctx.save_for_backward(h, W, E, y)
        return y

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        h, W, E, y = ctx.saved_tensors
        g, dh = above[0].to(E.dtype), torch.zeros_like(h)
        for at, p in _distributions(h, W):
            slope = p * (g[at] @ E.T - (g[at] * y[at]).sum(-1, keepdim=True))
            dh[at] = (slope.to(W.dtype) @ W).to(h.dtype)
        return dh, None, None


def _distributions(h: Tensor, W: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for at in chunks(h):
        logits = h[at].to(W.dtype) @ W.T
        yield at, logits.softmax(-1, dtype=torch.promote_types(W.dtype, torch.float32)).to(W.dtype)
