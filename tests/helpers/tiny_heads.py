"""Tiny heads on a tiny target, float64."""

from dataclasses import replace
from typing import Any

import torch

from draftwood.core.forward import FINAL
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.build import net
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.runners.runner import FloatRunner
from draftwood.drafters.on_features.features import Features
from draftwood.testing.parts.tiny import CONFIG

LAYER = replace(CONFIG, num_layers=1)
KEEP = torch.arange(0, CONFIG.vocab_size, 2)


def head_config(kind: str, **more: Any) -> HeadConfig:
    taps = (1, 2, 3) if kind == "eagle3" else (FINAL,)
    return HeadConfig(kind, LAYER, CONFIG.hidden_size, taps, rows=len(KEEP), **more)


def random_net(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, **more: Any) -> Any:
    """Weights large enough that its distributions are neither flat nor the target's."""
    module = net(head_config(kind, **more)).to(dtype)
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            drawn = torch.randn(p.shape, generator=noise, dtype=torch.float32).to(dtype)
            p.copy_(0.3 * drawn if p.ndim > 1 else 1 + 0.1 * drawn)
    return module


def features(module: Any, target: Runner, ids: torch.Tensor | None = KEEP) -> Features:
    return Features(FloatRunner(module, target, ids))
