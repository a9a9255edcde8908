"""Rotary position embedding: cosines and sines by position, with the scaled frequencies of long-context models."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.config import ModelConfig, RopeScaling


def frequencies(config: ModelConfig) -> Float[Tensor, "half"]:
    """One frequency per pair of a head, in float32 as the models were trained with."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    freq = 1.0 / (config.rope_theta**half)
    return freq if config.rope_scaling is None else scaled(freq, config.rope_scaling)


def scaled(freq: Float[Tensor, "half"], scaling: RopeScaling) -> Float[Tensor, "half"]:
    """Frequencies for long contexts."""
    if scaling.kind == "linear":
        return freq / scaling.factor
    # The frequencies of wavelengths beyond the trained context are divided, short ones kept, with a ramp between.
    length = 2 * math.pi / freq
    low = scaling.original_max_positions / scaling.low_freq_factor
    high = scaling.original_max_positions / scaling.high_freq_factor
    ramp = (scaling.original_max_positions / length - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blend = (1 - ramp) * freq / scaling.factor + ramp * freq
    return torch.where(length > low, freq / scaling.factor, torch.where(length < high, freq, blend))


def angles(
    freq: Float[Tensor, "half"], positions: Int[Tensor, "T"], dtype: torch.dtype
) -> tuple[Float[Tensor, "T 1 d"], Float[Tensor, "T 1 d"]]:
    """Cosines and sines of a pass for both numbers of every pair, computed once and used by every layer."""
    angle = positions[:, None].float() * freq
    cos, sin = angle.cos(), angle.sin()
    return tuple(torch.cat(pair, dim=-1).to(dtype)[:, None] for pair in ((cos, cos), (-sin, sin)))  # type: ignore[return-value]


def rotate(
    x: Float[Tensor, "T heads d"], cos: Float[Tensor, "T 1 d"], sin: Float[Tensor, "T 1 d"]
) -> Float[Tensor, "T heads d"]:
    """Rotate the pair (i, i + d/2) of every head by the position's angle, in four operations: on an accelerator their number
    decides the time."""
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin
