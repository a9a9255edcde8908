"""Kernels that overlap count once."""

import pytest
import torch

from draftwood.bench.gpu.busy import covered, kernel_seconds, outside


def test_the_union_of_intervals() -> None:
    assert covered([]) == 0
    assert covered([(0, 2), (3, 4)]) == 3
    assert covered([(3, 4), (0, 2), (1, 2.5), (1, 1.5)]) == 3.5
    assert covered([(0, 10), (2, 3)]) == 10


def test_the_share_outside_kernels() -> None:
    assert outside(2.0, 1.5) == 0.25
    assert outside(1.0, 1.2) == 0.0 == outside(0.0, 1.0)


@pytest.mark.gpu
def test_kernels_are_seen_on_a_gpu() -> None:
    x = torch.ones(2**22, device="cuda")
    assert 0 < kernel_seconds(lambda: [x.mul_(1.0) for _ in range(20)]) < 1
