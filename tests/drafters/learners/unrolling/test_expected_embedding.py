"""The mean embedding is the plain formula, and so is its gradient, chunk by chunk and for no position at all."""

import pytest
import torch

from draftwood.drafters.learners.unrolling.expected_embedding import expected_embedding
from draftwood.train import objectives


def drawn(*shape: int, seed: int = 0, grad: bool = False) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=noise, dtype=torch.float64).requires_grad_(grad)


@pytest.mark.parametrize("count", [0, 1, 5, 11])
def test_expected_embedding_and_its_gradient(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "_CPU_CHUNK", 4)
    h, w, e = drawn(count, 6, grad=True), drawn(13, 6, seed=1), drawn(13, 8, seed=2)
    above = drawn(count, 8, seed=3)
    y = expected_embedding(h, w, e)
    (y * above).sum().backward()
    own, h.grad = h.grad, None
    plain = (h @ w.T).softmax(-1) @ e
    (plain * above).sum().backward()
    torch.testing.assert_close(y, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own, h.grad, rtol=1e-12, atol=1e-12)
