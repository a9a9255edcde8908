"""Random heads for any target: an untrained head must not change the text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from draftwood.core.forward import FINAL
from draftwood.core.protocols import Runner
from draftwood.drafters.nets.files.build import net
from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.drafters.nets.files.find import fingerprint
from draftwood.drafters.nets.files.store import Head, to_bytes


def random_head(kind: str, target: Runner, *, seed: int = 0, rows: int | None = None, **more: Any) -> Head:
    """Weights large enough that its distributions are neither flat nor the target's."""
    c = target.info.config
    assert c is not None
    layers = {"language": 2, "nested": 3, "block": 2}.get(kind, 1)
    several = (1, c.num_layers // 2, c.num_layers - 1)
    places = {"eagle3": several, "block": several, "exit": (1,), "exit_layer": (1,), "exits": (1, 2)}
    taps = places.get(kind, (FINAL,))
    keep = torch.arange(0, c.vocab_size) if rows is None else torch.arange(rows) * (c.vocab_size // rows)
    stages = {"block": 3, "semi": 2}.get(kind, 3 if kind in ("medusa", "deep_medusa", "hydra", "mlp", "probes") else 1)
    depth = 2 if kind in ("deep_eagle", "deep_medusa") else 1
    exits = tuple(range(1, layers + 1)) if kind == "nested" else ()
    shared = kind.startswith("exit") or kind in ("block", "semi")
    sizes = {"stages": stages, "depth": depth, "target_rows": shared, "exits": exits, **more}
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
