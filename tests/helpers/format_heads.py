"""Heads, targets and folders of a few thousand weights, for the tests of formats."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwood.drafters.nets.files.store import Head
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner, tiny_weights
from draftwood.train.formats.conversion import Target
from draftwood.train.formats.convert import Conversion, convert, read, write
from draftwood.train.formats.roundtrip import Input, columns, logits, random_input

VOCAB = CONFIG.vocab_size
KINDS = {"eagle": "eagle", "eagle3": "eagle3", "speculators": "eagle3", "medusa": "medusa", "mlp_speculator": "mlp"}


def target(**changes: Any) -> Target:
    """Untied: a table mistaken for the other is noticed."""
    noise = torch.Generator().manual_seed(5)
    rows = torch.randn(VOCAB, CONFIG.hidden_size, generator=noise) / CONFIG.hidden_size**0.5
    config = replace(CONFIG, num_layers=8, tie_embeddings=False, **changes)
    return Target("tiny", config, "", tiny_weights()["model.embed_tokens.weight"], rows)


def head(kind: str, *, rows: int | None = None, seed: int = 3, **more: Any) -> Head:
    made = random_head(kind, tiny_runner(dtype=torch.float32), rows=rows, seed=seed, **more)
    # Smaller than elsewhere: logits of the size of real ones, so that 1e-4 is far above rounding and far below a mistake.
    made = replace(made, tensors={name: 0.5 * t if t.ndim > 1 else t for name, t in made.tensors.items()})
    return replace(made, ids=None) if rows is None else made


def folder_of(form: str, out: Path, made: Head | None = None, conversion: Conversion | None = None) -> Path:
    """A folder in this format, which the tests of damage then damage."""
    write(made or head(KINDS[form]), form, out, conversion or Conversion(target()))
    return out


def edit(folder: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> Path:
    """Hand config and tensors to `change` and write what it left of them."""
    path = next(path for path in folder.iterdir() if path.name != "config.json")
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    path.unlink()
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, path.with_suffix(".safetensors"))
    return folder


def shown(made: Head, to: Target | None, seed: int = 1) -> Input:
    return random_input(made, columns(made), to, seed)


__all__ = [
    "KINDS", "VOCAB", "Conversion", "columns", "convert", "edit", "folder_of", "head", "logits", "read", "shown", "target",
]  # fmt: skip
