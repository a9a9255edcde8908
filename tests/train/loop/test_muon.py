"""Muon's step: the same size in every direction of a matrix, whatever the gradient's."""

import pytest
import torch

from draftwood.core.train_plan import Rate
from draftwood.train.loop.muon import Muon, orthogonal
from draftwood.train.loop.stages import optimisers


@pytest.mark.parametrize("shape", [(12, 12), (8, 24), (24, 8)])
def test_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -1, shape[1])
    u, s, v = torch.linalg.svd(g, full_matrices=False)
    assert s.max() / s.min() > 3, "a twin: the gradient's own are far apart"
    found = orthogonal(g)
    assert found.shape == g.shape
    values = torch.diagonal(u.T @ found @ v.T)  # its own directions stay
    assert values.min() > 0.6 and values.max() < 1.3


def test_a_zero_gradient_gives_a_zero_step() -> None:
    assert not orthogonal(torch.zeros(3, 4)).any()


def test_step_has_the_size_of_the_rate() -> None:
    p = torch.nn.Parameter(torch.zeros(16, 32))
    optimiser = Muon([p], lr=0.01)
    for scale in (1e-3, 1e3):  # the gradient's size does not matter
        before = p.detach().clone()
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * scale
        optimiser.step()
        assert 0.5e-2 * 0.2 < (p - before).square().mean().sqrt() < 2e-2 * 0.2 * 2**0.5


def test_it_finds_the_least_squares() -> None:
    noise = torch.Generator().manual_seed(2)
    goal, p = torch.randn(6, 9, generator=noise), torch.nn.Parameter(torch.zeros(6, 9))
    optimiser = Muon([p], lr=0.05)
    for i in range(200):
        optimiser.param_groups[0]["lr"] = 0.3 * (1 - i / 200)
        optimiser.zero_grad()
        (p - goal).square().sum().backward()
        optimiser.step()
    assert (p - goal).abs().max() < 0.05 < goal.abs().max()


def test_matrices_are_muons_and_the_rest_is_not() -> None:
    matrix, vector = torch.nn.Parameter(torch.zeros(3, 4)), torch.nn.Parameter(torch.zeros(4))
    first, second = optimisers([vector, matrix], Rate(), muon=True)
    assert isinstance(first, Muon) and first.param_groups[0]["params"][0] is matrix
    assert isinstance(second, torch.optim.AdamW) and second.param_groups[0]["params"][0] is vector
    (only,) = optimisers([vector, matrix], Rate(), muon=False)
    assert isinstance(only, torch.optim.AdamW)
    with pytest.raises(ValueError, match="matrices"):
        Muon([vector], lr=1.0)
