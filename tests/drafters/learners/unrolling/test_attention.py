"""One softmax over the causal keys and the few of each index's own: as a mask over all of them says."""

import torch
from torch import Tensor

from draftwood.drafters.learners.unrolling import attention


def drawn(later: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    noise = torch.Generator().manual_seed(later)

    def some(heads: int) -> Tensor:
        return torch.randn(2, heads, 7, 8, generator=noise, dtype=dtype).requires_grad_()

    return some(6), [some(2) for _ in range(1 + later)], [some(2) for _ in range(1 + later)]


def by_mask(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    ks, vs = ([x.repeat_interleave(3, dim=1) for x in several] for several in (keys, values))
    return attention.masked(q, ks, vs)


def test_output_and_every_gradient_are_those_of_the_mask() -> None:
    for later in (0, 1, 3):
        q, keys, values = drawn(later)
        inputs, up = [q, *keys, *values], torch.randn(q.shape, dtype=q.dtype)
        found, wanted = attention.unrolled_attention(q, keys, values), by_mask(q, keys, values)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        for mine, theirs in zip(*(torch.autograd.grad(x, inputs, up) for x in (found, wanted)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def test_own_keys_count() -> None:
    """A twin: without them, or with another index's, the output is another."""
    q, keys, values = drawn(2)
    whole = attention.unrolled_attention(q, keys, values)
    assert not torch.allclose(whole, attention.unrolled_attention(q, keys[:2], values[:2]))
    moved = [keys[0], *(k.roll(1, dims=2) for k in keys[1:])]
    assert not torch.allclose(whole, attention.unrolled_attention(q, moved, values))


def test_large_scores_stay_numbers() -> None:
    q, keys, values = drawn(1, torch.float32)
    with torch.no_grad():
        found = attention.unrolled_attention(q * 1e3, [k * 1e3 for k in keys], values)
        wanted = by_mask(q * 1e3, [k * 1e3 for k in keys], values)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
