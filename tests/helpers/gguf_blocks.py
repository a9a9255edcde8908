"""Rows of random GGUF blocks, and what the gguf package makes of them."""

import warnings

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from draftwood.models.backends.quantised_blocks import Kind, Packed, packed_from_blocks
from draftwood.models.backends.quantised_blocks.kinds import FLOATS, LAYOUTS, WITH_MINIMUM

TYPES = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}


def blocks(kind: Kind, rows: int, columns: int, seed: int = 0) -> Tensor:
    """Bytes of whole rows. Every bit is random but those of the scales in halves, which are small numbers."""
    noise = np.random.default_rng(1000 * kind + rows + columns + seed)
    if kind in FLOATS:
        return (
            torch.from_numpy(noise.standard_normal((rows, columns), np.float32) / 20).to(TYPES[kind]).view(torch.uint8)
        )
    layout = LAYOUTS[kind]
    raw = noise.integers(0, 256, (rows, columns // layout.columns_raw, layout.raw), np.uint8)
    wide = {Kind.Q4_K: 40, Kind.Q5_K: 40, Kind.Q6_K: 40, Kind.IQ4_XS: 400, Kind.IQ4_NL: 10, Kind.Q8_0: 10}.get(kind, 1)
    scales = (noise.random((*raw.shape[:2], 2), np.float32) / 50 / wide).astype(np.float16)
    at = layout.raw - 2 if kind is Kind.Q6_K else 0
    raw[..., at : at + 2] = scales[..., :1].view(np.uint8)
    if kind in WITH_MINIMUM:
        raw[..., 2:4] = scales[..., 1:].copy().view(np.uint8)
    return torch.from_numpy(raw.reshape(rows, -1))


def dequantised(raw: Tensor, kind: Kind, columns: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if kind in FLOATS:
            return raw.view(TYPES[kind]).float()
        found = dequantize(raw.numpy(), GGMLQuantizationType[kind.name])
    return torch.from_numpy(np.array(found, np.float32)).view(len(raw), columns)


def packed(kind: Kind, rows: int, columns: int, seed: int = 0) -> Packed:
    return packed_from_blocks(blocks(kind, rows, columns, seed), kind.name, rows, columns)
