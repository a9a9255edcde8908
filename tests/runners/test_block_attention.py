"""Attention of draft heads over a cache in blocks is used where it agrees with its twin on the device."""

from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.forward import CacheSpec
from draftwood.errors import EngineError
from draftwood.kernels.gpu.twins import Twins
from draftwood.runners.block_attention import trusted

SPECS = tuple(CacheSpec(name, 2, 16, torch.float32) for name in ("k0", "v0"))
CPU = torch.device("cpu")


class Halved(Twins):
    def attended(self, *args: Any) -> Tensor:
        return super().attended(*args) / 2


class Failing(Twins):
    def attended(self, *args: Any) -> Tensor:
        raise EngineError("out of shared memory\nhint: none")


def test_only_what_agrees_with_the_twin_is_used() -> None:
    said: list[str] = []
    assert trusted(None, SPECS, 4, CPU, said.append) is None and not said
    right = Twins()
    assert trusted(right, SPECS, 4, CPU, said.append) is right and not said
    assert trusted(Halved(), SPECS, 4, CPU, said.append) is None
    assert trusted(Failing(), SPECS, 4, CPU, said.append) is None
    assert said == ["wrong by 0.5", "EngineError: out of shared memory"]


@pytest.mark.slow
def test_the_kernels_agree() -> None:
    pytest.importorskip("triton")
    from draftwood.kernels.gpu.operations import Operations
    from gpu_cases import DEVICE, DTYPE

    said: list[str] = []
    for invariant in (False, True):
        kernels: Any = Operations(invariant)
        specs = tuple(CacheSpec(name, 2, 16, DTYPE) for name in ("k0", "v0"))
        assert trusted(kernels, specs, 4, DEVICE, said.append) is kernels, said
