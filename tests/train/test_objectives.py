"""Losses are the plain formulas, and so are their gradients, chunk by chunk and for no position at all."""

from typing import Any

import pytest
import torch

from draftwood.train import objectives
from draftwood.train.objectives import (
    aligned_cross_entropy,
    among,
    hard_cross_entropy,
    inverse,
    shifted,
    smooth_l1,
    soft_cross_entropy,
)


def drawn(*shape: int, seed: int = 0, grad: bool = True) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=noise, dtype=torch.float64).requires_grad_(grad)


def plain_soft(h: Any, w: Any, f: Any, r: Any) -> torch.Tensor:
    return -((f @ r.T).softmax(-1) * (h @ w.T).log_softmax(-1)).sum(-1).mean()


def plain_hard(h: Any, w: Any, label: Any) -> torch.Tensor:
    return -(h @ w.T).log_softmax(-1).gather(1, label[:, None]).mean()


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 11])  # chunks of 4: short, whole, one more
def test_soft_cross_entropy_and_its_gradients(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "_CPU_CHUNK", 4)
    h, w, f, r = drawn(count, 6), drawn(13, 6, seed=1), drawn(count, 7, seed=2), drawn(13, 7, seed=3)
    loss, hit = soft_cross_entropy(h, w, f, r)
    (3 * loss).backward()
    own = [h.grad, w.grad]
    assert f.grad is None and r.grad is None, "the target is never trained"
    h.grad = w.grad = None
    plain = plain_soft(h, w, f.detach(), r.detach())
    (3 * plain).backward()
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own, [h.grad, w.grad], rtol=1e-12, atol=1e-12)
    assert float(hit) == pytest.approx(float(((h @ w.T).argmax(-1) == (f @ r.T).argmax(-1)).double().mean()))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 11])
def test_hard_cross_entropy_and_its_gradients(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "_CPU_CHUNK", 4)
    h, w = drawn(count, 6), drawn(13, 6, seed=1)
    label = torch.arange(count) * 5 % 13
    loss, hit = hard_cross_entropy(h, w, label, torch.float64)
    (0.5 * loss).backward()
    own = [h.grad, w.grad]
    h.grad = w.grad = None
    plain = plain_hard(h, w, label)
    (0.5 * plain).backward()
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own, [h.grad, w.grad], rtol=1e-12, atol=1e-12)
    assert float(hit) == pytest.approx(float(((h @ w.T).argmax(-1) == label).double().mean()))


def test_another_formula_would_be_noticed() -> None:
    """A twin: the roles of P and Q swapped give another loss and other gradients."""
    h, w, f, r = drawn(5, 6), drawn(13, 6, seed=1), drawn(5, 7, seed=2), drawn(13, 7, seed=3)
    loss, _ = soft_cross_entropy(h, w, f, r)
    assert abs(float((loss - plain_soft(f, r, h, w)).detach())) > 1e-3


def test_gradients_are_made_only_where_they_are_wanted() -> None:
    h, w, f = drawn(5, 6), drawn(13, 6, seed=1, grad=False), drawn(5, 6, seed=2, grad=False)
    loss, _ = soft_cross_entropy(h, w, f, w)
    loss.backward()
    assert h.grad is not None and w.grad is None
    fixed = h.detach()
    rows = drawn(13, 6, seed=1)
    soft_cross_entropy(fixed, rows, f, w)[0].backward()
    assert rows.grad is not None


def test_no_position_is_a_loss_of_zero_and_no_nan() -> None:
    h, w, f = drawn(0, 6), drawn(13, 6, seed=1), drawn(0, 6, seed=2, grad=False)
    for loss, hit in (
        soft_cross_entropy(h, w, f, w.detach()),
        hard_cross_entropy(h, w, torch.zeros(0, dtype=torch.int64)),
    ):
        w.grad = None
        loss.backward()
        assert float(loss.detach()) == 0 == float(hit) and w.grad is not None and not w.grad.any()
    loss = smooth_l1(h, f)
    loss.backward()
    assert float(loss.detach()) == 0


def test_smooth_l1_is_the_mean_over_all_numbers() -> None:
    g, f = drawn(5, 6), drawn(5, 6, seed=1, grad=False)
    torch.testing.assert_close(smooth_l1(g, f), torch.nn.functional.smooth_l1_loss(g, f))


def test_shifts_do_not_cross_sequences_and_places_are_found() -> None:
    x = torch.arange(1, 9).view(2, 4)
    assert shifted(x, 0) is x
    assert shifted(x, 1).tolist() == [[2, 3, 4, 0], [6, 7, 8, 0]]
    assert shifted(x, 3).tolist() == [[4, 0, 0, 0], [8, 0, 0, 0]]
    assert shifted(x, 9).shape == x.shape and not shifted(x, 9).any()
    assert inverse(torch.tensor([1, 3]), 5).tolist() == [-1, 0, -1, 1, -1]


# --- over the most probable tokens, and where a label is near


def plain_aligned(h: Any, w: Any, f: Any, r: Any, soft: float, top: float, most: int) -> torch.Tensor:
    p, log_q = (f @ r.T).softmax(-1), (h @ w.T).log_softmax(-1)
    best = p.topk(most, dim=-1).indices
    return -(soft * (p * log_q).sum(-1) + top * (p * log_q).gather(1, best).sum(-1)).mean()


@pytest.mark.parametrize("count", [1, 4, 5, 11])
@pytest.mark.parametrize(("soft", "top", "most"), [(0.1, 0.5, 3), (1.0, 0.0, 3), (0.0, 1.0, 13)])
def test_aligned_cross_entropy_and_its_gradients(
    count: int, soft: float, top: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objectives, "_CPU_CHUNK", 4)
    h, w, f, r = drawn(count, 6), drawn(13, 6, seed=1), drawn(count, 7, seed=2), drawn(13, 7, seed=3)
    label = torch.arange(count) * 5 % 13
    label[0] = -1
    loss, same, close = aligned_cross_entropy(h, w, f, r, label, soft=soft, top=top, most=most, near=3)
    (3 * loss).backward()
    own = [h.grad, w.grad]
    assert f.grad is None and r.grad is None, "the target is never trained"
    h.grad = w.grad = None
    plain = plain_aligned(h, w, f.detach(), r.detach(), soft, top, most)
    (3 * plain).backward()
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own, [h.grad, w.grad], rtol=1e-12, atol=1e-12)
    logits = h @ w.T
    assert torch.equal(same, logits.argmax(-1) == (f @ r.T).argmax(-1))
    assert torch.equal(close, (logits.topk(3).indices == label[:, None]).any(-1)) and not close[0]
    other = plain_aligned(h, w, f.detach(), r.detach(), soft, top, 2)
    assert not top or abs(float((loss - other).detach())) > 1e-3, "a twin: fewer tokens, another loss"


def test_a_label_is_among_the_best_of_all_tokens_if_there_is_one() -> None:
    scores, label = drawn(4, 6, grad=False), torch.tensor([0, 5, -1, 2])
    assert among(scores, label, 6).tolist() == [True, True, False, True]
    assert among(scores, label, 1).tolist() == (scores.argmax(-1) == label).tolist()
