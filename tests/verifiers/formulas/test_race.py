"""The race form of draws without replacement: the same as drawing, for every prefix."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from draftwood.verifiers.formulas import race
from draftwood.verifiers.formulas.race import Race, multiply, scan


def drawn_inside(q: list[float], held: int, k: int) -> float:
    """Probability that k draws without replacement are all among the first `held` tokens, by adding up orders."""
    total = 0.0
    for first in permutations(range(held), k):
        prob, left = 1.0, 1.0
        for token in first:
            prob, left = prob * q[token] / left, left - q[token]
        total += prob
    return total


def probs(size: int, seed: int = 0) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.softmax(2 * torch.randn(size, generator=noise, dtype=torch.float64), 0)


def test_every_prefix_agrees_with_adding_up_orders() -> None:
    q = probs(6)
    made = Race(q, 4).inside(0)
    for held in range(1, 6):
        for k in (3, 4):
            assert float(made[k - 1, held - 1]) == pytest.approx(drawn_inside(q.tolist(), held, k), abs=1e-9)


def test_edges_and_the_tokens_between_them_are_one_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    q = probs(50)
    whole = Race(q, 5).inside(0)
    monkeypatch.setattr(race, "CHUNK", 8)
    monkeypatch.setattr(race, "TOGETHER", 3)
    small = Race(q, 5)
    assert small.edges.tolist() == [0, 8, 16, 24, 32, 40, 48, 50]
    edges = small.at_edges()
    assert torch.allclose(edges[:, 1:-1], whole[:, small.edges[1:-1] - 1], atol=1e-12)
    assert (edges[:, 0].abs() < 1e-12).all() and (edges[:, -1] == 1).all()
    assert torch.allclose(small.inside(2), whole[:, 16:23], atol=1e-12)
    assert small.inside(6).shape == (5, 1)


def test_longer_prefixes_gain_more_per_mass() -> None:
    q = probs(40, 1)
    inside = torch.cat([torch.zeros(5, 1), Race(q, 5).inside(0), torch.ones(5, 1)], dim=1)
    gain = inside.diff(dim=1)[2:] / q
    assert (gain.diff(dim=1) > -1e-8).all()


def test_running_products_are_products_cut_off() -> None:
    each = [torch.tensor([0.5, 0.2, 0.9]), torch.tensor([0.5, 0.8, 0.1])]
    done = scan(each, 3)
    assert torch.stack(done)[:, -1].tolist() == pytest.approx([0.09, 0.46, 0.41])
    assert len(multiply(done, done, 3)) == 3
