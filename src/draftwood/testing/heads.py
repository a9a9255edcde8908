"""Random heads for any target: an untrained head must not change the text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from draftwood.core.forward import FINAL
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.build import net
from draftwood.drafters.nets.config import HeadConfig
from draftwood.drafters.nets.find import fingerprint
from draftwood.drafters.nets.store import Head, to_bytes


def random_head(kind: str, target: Runner, *, seed: int = 0, rows: int | None = None, **more: Any) -> Head:
    """Weights large enough that its distributions are neither flat nor the target's."""
    c = target.info.config
    assert c is not None
    layers = 2 if kind == "language" else 1
    taps = (1, c.num_layers // 2, c.num_layers - 1) if kind == "eagle3" else (FINAL,)
    keep = torch.arange(0, c.vocab_size) if rows is None else torch.arange(rows) * (c.vocab_size // rows)
    stages = 3 if kind in ("medusa", "hydra", "mlp") else 1
    sizes = {"stages": stages, **more}
    config = HeadConfig(
        kind, replace(c, num_layers=layers, qk_norm=False), c.hidden_size, taps, rows=len(keep), **sizes
    )
    noise = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(t.shape, generator=noise) for name, t in net(config).state_dict().items()}
    tensors = {name: 0.3 * x if x.ndim > 1 and "bias" not in name else 1 + 0.1 * x for name, x in drawn.items()}
    return Head(config, tensors, keep, fingerprint(target))


def write_head(path: Path, head: Head) -> Path:
    path.write_bytes(to_bytes(head))
    return path
