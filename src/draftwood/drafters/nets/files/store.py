"""A trained drafter in one safetensors file: small, checked, and bound to the target it was trained for.

    name            int8 [rows, columns]          name.scale   float16 [rows, blocks]
    name.nibbles    uint8 [rows, columns / 2]     name.scale, name.minimum
    name            float16: norms and biases; everything in float16 or float32 if nothing is to be rounded
    ids             uint16 or int32: token of each column of its distribution

Blocks are 32 columns wide: the very numbers that the int8 backend multiplies, so nothing is rounded twice.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from draftwood.drafters.nets.files.config import HeadConfig
from draftwood.errors import WeightsError

BLOCK = 32
FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Weights by the names of the net's state dict, float32; `ids` None: its distribution covers the whole vocabulary."""

    config: HeadConfig
    tensors: dict[str, Tensor]
    ids: Int[Tensor, "W"] | None
    target: str  # fingerprint
    record: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def digest(self) -> str:
        """Of its numbers: what was measured with other weights of the same file does not hold for these."""
        found = hashlib.sha256()
        for name in sorted(self.tensors):
            found.update(self.tensors[name].numpy().tobytes())
        return found.hexdigest()[:16]


def to_bytes(head: Head, *, bits: Mapping[str, int] | None = None, floats: int | None = None) -> bytes:
    """Matrices in 8 bits and vectors in float16, or as `bits` says by name: 4, 8, 16 or 32, the first two for matrices only.
    `floats`: 16 or 32 for all."""
    stored: dict[str, Tensor] = {}
    for name, t in head.tensors.items():
        asked = (bits or {}).get(name, 8)
        wide = floats or (max(asked, 16) if t.ndim < 2 or t.shape[-1] % BLOCK else asked)
        stored |= _stored(name, t.detach().float().cpu(), wide)
    if head.ids is not None:
        ids = head.ids.cpu()
        stored["ids"] = ids.to(torch.uint16 if bool(((ids >= 0) & (ids < 1 << 16)).all()) else torch.int32)
    note = {"format": FORMAT, "target": head.target, "config": head.config.to_json(), "record": head.record}
    return save(stored, metadata={"draftwood": json.dumps(note)})


def _stored(name: str, t: Float[Tensor, "*S"], bits: int) -> dict[str, Tensor]:
    if bits >= 16:
        return {name: (t.half() if bits == 16 else t).contiguous()}
    blocks = t.unflatten(-1, (-1, BLOCK))
    if bits == 8:
        scale = (blocks.abs().amax(-1) / 127).half()
        step = scale.float()[..., None]
        values = torch.where(step > 0, blocks / step, 0.0).round().clamp(-127, 127).to(torch.int8)
        return {name: values.flatten(-2), f"{name}.scale": scale}
    low, high = blocks.amin(-1).half(), blocks.amax(-1)
    scale = ((high - low.float()) / 15).half()
    step = scale.float()[..., None]
    nibbles = torch.where(step > 0, (blocks - low.float()[..., None]) / step, 0.0).round().clamp(0, 15).to(torch.uint8)
    flat = nibbles.flatten(-2)
    return {f"{name}.nibbles": flat[..., 0::2] | flat[..., 1::2] << 4, f"{name}.scale": scale, f"{name}.minimum": low}


def read(path: Path) -> Head:
    """WeightsError names the file and what is wrong with it."""
    note = read_note(path)
    try:
        with safe_open(path, framework="pt") as file:
            raw = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise WeightsError(f"{path} cannot be read: {error}") from None
    ids = raw.pop("ids", None)
    config = HeadConfig.from_json(note["config"])
    if ids is not None:
        ids = _checked_ids(ids, config, path)
    try:
        tensors = _plain(raw, path)
    except (KeyError, RuntimeError) as error:  # scales or minima that are missing, or of another shape
        raise WeightsError(f"{path}: its numbers do not fit each other: {error}") from None
    bad = [name for name, t in tensors.items() if not bool(torch.isfinite(t).all())]
    if bad:
        raise WeightsError(
            f"{path}: {bad[0]} holds something that is no number\nhint: the file is damaged; train or fetch it again"
        )
    record = note.get("record")
    return Head(config, tensors, ids, note["target"], record if isinstance(record, dict) else {})


def _checked_ids(ids: Tensor, config: HeadConfig, path: Path) -> Int[Tensor, "W"]:
    vocab_size = config.layer.vocab_size
    if ids.ndim != 1 or ids.is_floating_point() or len(ids) != config.rows:
        raise WeightsError(
            f"{path}: ids of shape {list(ids.shape)} do not fit {config.rows} rows of {vocab_size} tokens"
        )
    ids = ids.long()
    outside = ids[(ids < 0) | (ids >= vocab_size)].tolist()
    if outside:
        raise WeightsError(f"{path}: its ids do not fit {vocab_size} tokens, for example {outside[0]}")
    if len(ids.unique()) < len(ids):
        raise WeightsError(f"{path}: its ids name a token twice")
    return ids


def read_note(path: Path) -> dict[str, Any]:
    """What the file says about itself, without its weights."""
    try:
        with safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {})["draftwood"])
            if not isinstance(note, dict):
                raise ValueError("its note is no object")
    except Exception as error:
        raise WeightsError(
            f"{path} is no drafter of ours: {error}\nhint: `draftwood convert` reads the formats of others"
        ) from None
    if note.get("format") != FORMAT:
        raise WeightsError(f"{path} has format {note.get('format')!r}, this version reads {FORMAT}")
    if not isinstance(note.get("config"), dict) or not isinstance(note.get("target"), str):
        raise WeightsError(f"{path} does not say what it is\nhint: the file is damaged; train or fetch it again")
    return note


def _plain(raw: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, t in raw.items():
        if name.endswith((".scale", ".minimum")):
            continue
        base = name.removesuffix(".nibbles")
        if t.dtype in (torch.int8, torch.uint8):
            scale = raw.get(f"{base}.scale")
            if scale is None:
                raise WeightsError(f"{path}: {base} has no scales")
            wide = t.shape[-1] * (2 if t.dtype is torch.uint8 else 1)
            if scale.shape != (*t.shape[:-1], wide // BLOCK):  # one scale too few might broadcast
                raise WeightsError(f"{path}: {base} is {wide} wide and has scales of shape {list(scale.shape)}")
            step = scale.float()[..., None]
            if t.dtype is torch.uint8:
                both = torch.stack([t & 15, t >> 4], dim=-1).flatten(-2).float()
                values = both.unflatten(-1, (-1, BLOCK)) * step + raw[f"{base}.minimum"].float()[..., None]
            else:
                values = t.float().unflatten(-1, (-1, BLOCK)) * step
            found[base] = values.flatten(-2)
        else:
            found[base] = t.float()
    return found
