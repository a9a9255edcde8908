"""The linear programme: chances of pairs that make the winner's distribution cover most of p."""

import numpy as np
import pytest
import torch

from draftwood.verifiers import selection_lp
from draftwood.verifiers.selection_lp import best_chances, solved


def shared(chances: np.ndarray, p: np.ndarray, r: np.ndarray, q: np.ndarray) -> float:
    """sum min(p, won) by adding up all pairs, none left out."""
    won = np.zeros(len(p))
    for i in range(len(p)):
        for j in range(len(p)):
            won[i] += r[i] * q[j] * chances[i, j]
            won[j] += r[i] * q[j] * (1 - chances[i, j])
    assert won.sum() == pytest.approx(1)
    return float(np.minimum(p, won).sum())


def test_no_random_chances_are_better() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        p, r, q = rng.dirichlet(np.ones(4), 3)
        found = solved(p.tolist(), r.tolist(), q.tolist(), 0.0, 0.0)
        assert found is not None and ((found >= 0) & (found <= 1)).all() and (np.diag(found) == 1).all()
        best = shared(found, p, r, q)
        by_rank = np.triu(np.ones((4, 4)))
        assert best >= max(shared(rng.random((4, 4)) ** 0.3, p, r, q) for _ in range(20)) - 1e-9
        assert best >= shared(by_rank, p, r, q) - 1e-9


def test_pairs_that_are_not_asked_for_and_failures_go_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2]] * 2).double(), torch.tensor([[0.3, 0.4, 0.3]] * 2).double()
    none, where = torch.zeros(2).double(), torch.tensor([True, False])
    found = best_chances(p, q, q, none, none, where)
    assert torch.equal(found[1], torch.ones(3, 3).double().triu()) and not torch.equal(found[0], found[1])
    monkeypatch.setattr(selection_lp, "solved", lambda *_: None)
    assert torch.equal(best_chances(p, q, q, none, none, where)[0], found[1])
