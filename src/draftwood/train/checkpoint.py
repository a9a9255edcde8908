"""Checkpoints: all weights and moments of a run in one safetensors file, replaced whole or not at all.

No pickle is written or read, so a checkpoint holds numbers and cannot hold code.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from draftwood.errors import TrainError

FILE = "checkpoint.safetensors"


def write(folder: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Beside the old one first, then in its place: whatever goes wrong, one whole checkpoint is there."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}
    replace_file(folder / FILE, save(plain, metadata={"note": json.dumps(dict(note))}))


def replace_file(path: Path, data: bytes) -> None:
    """Bytes on the disk under a new name, then renamed. A full disk leaves the old file as it was."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        kept = "the last good one is still there" if path.exists() else "there was none before it"
        raise TrainError(f"{path} could not be written: {error.strerror or error}\nhint: make room; {kept}") from None


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and note, or None if there is no checkpoint."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {})["note"])
            return {name: file.get_tensor(name) for name in file.keys()}, note  # noqa: SIM118
    except Exception as error:
        raise TrainError(f"{path} is no checkpoint: {error}\nhint: delete it to begin anew") from None


def finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors that hold something that is no number."""
    return [name for name, t in tensors.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
