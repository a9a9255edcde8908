"""The native backend at every level of instructions this machine has, and weights that both backends hold alike."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.kernels.cpu import build
from draftwood.kernels.cpu.levels import LEVELS, cpu_flags
from draftwood.kernels.cpu.library import Library
from draftwood.models.backends.quantised_blocks import pack, unpack
from draftwood.models.loading import folder_cache
from draftwood.testing.parts.tiny import tiny_weights

BEST, *OTHERS = [level.name for level in LEVELS if level.needs <= cpu_flags()]
EVERY_LEVEL = [BEST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]  # those are compiled first


def compiled(name: str) -> Path | None:
    """None where there is no compiler."""
    return build.library(next(level for level in LEVELS if level.name == name), folder_cache.cache_dir() / "kernels")


@cache
def opened(name: str) -> Library:
    path = compiled(name)
    if path is None:
        pytest.skip(f"no compiler for {name}")
    return Library.open(name, path)


def packed(weight: Tensor) -> Tensor:
    return unpack(pack(weight))


def kept_weights(config: ModelConfig, kept: Callable[[Tensor], Tensor] = packed) -> dict[str, Tensor]:
    """What packing leaves of random weights. Wide rows get small ones: sharp attentions would make more of a rounding
    than it is."""
    drawn = tiny_weights(2, config)
    return {name: kept(t * (16 / t.shape[1]) ** 0.5) if t.ndim == 2 else t for name, t in drawn.items()}


def distance(said: Tensor, right: Tensor) -> float:
    """Mean, in standard deviations of what is right."""
    return float((said.double() - right.double()).abs().mean() / right.double().std())
