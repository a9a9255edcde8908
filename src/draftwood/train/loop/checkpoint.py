"""Checkpoints: the weights and optimiser moments of a run in one safetensors file, replaced atomically.

No pickle is written or read, so a checkpoint cannot hold code.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from draftwood.errors import TrainError

FILE = "checkpoint.safetensors"
NOTE: dict[str, Any] = {"step": int, "steps": int, "tokens": int, "seconds": (int, float), "identity": dict}


def write(folder: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Replaces the checkpoint. If writing fails, the old one stays."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainError(f"{folder} cannot be made: {error.strerror or error}\nhint: another --out") from None
    plain = {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}
    replace_file(folder / FILE, save(plain, metadata={"note": json.dumps(dict(note))}))


# NAME.PID.tmp of files that runs write. Other files are never removed.
_TEMPORARY = re.compile(r"(.+\.safetensors|.+\.npy|.+\.json|.+\.jsonl|.+\.svg)\.\d+\.tmp")


def replace_file(path: Path, data: bytes) -> None:
    """Writes a temporary file and renames it. If the disk is full, the old file stays."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        kept = "the previous version was kept" if path.exists() else "there was no previous version"
        raise TrainError(
            f"{path} could not be written: {error.strerror or error}\nhint: free disk space; {kept}"
        ) from None


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and note, or None if there is no checkpoint."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {})["note"])
            missing = [key for key, kind in NOTE.items() if not isinstance(note.get(key), kind)]
            if missing:
                raise ValueError(f"its note lacks {missing[0]}")
            return {name: file.get_tensor(name) for name in file.keys()}, note  # noqa: SIM118
    except Exception as error:
        raise TrainError(f"{path} is not a checkpoint: {error}\nhint: delete it to start again") from None


def same_run(folder: Path, note: Mapping[str, Any], identity: Mapping[str, str], steps: int | None) -> None:
    """TrainError if the checkpoint's run differs from this one, naming the difference."""
    # Older checkpoints call the size of the draft vocabulary "rows".
    theirs = {"draft-vocab-size" if key == "rows" else key: value for key, value in note["identity"].items()}
    for key in sorted({*theirs, *identity}):
        then, now = theirs.get(key, "nothing"), identity.get(key, "nothing")
        if then != now:
            raise TrainError(
                f"{folder} holds another run: {key} was {then}, now it is {now}\n"
                "hint: another --out, or delete the folder"
            )
    if steps not in (None, note["steps"]):
        raise TrainError(
            f"{folder} holds a run of {note['steps']} steps, not {steps}\nhint: leave out --steps to resume it"
        )


def load_weights(folder: Path, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copies a checkpoint's weights into those of a run, all or none."""
    for name, t in weights.items():
        there = tensors.get(f"weights/{name}")
        if there is None or there.shape != t.shape:
            what = "no" if there is None else f"a {list(there.shape)}"
            raise TrainError(
                f"{folder / FILE} holds {what} {name}, this run's is {list(t.shape)}\nhint: delete it to start again"
            )
    with torch.no_grad():
        for name, t in weights.items():
            t.copy_(tensors[f"weights/{name}"])


def remove_temporary(folder: Path) -> None:
    """Removes temporary files of killed runs. The caller holds the folder's lock."""
    for path in folder.glob("*.tmp"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that hold NaN or infinity."""
    return [name for name, t in tensors.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
