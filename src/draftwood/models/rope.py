"""Rotary position embedding: cosines and sines by position, with the scaled frequencies of long-context models."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.config import ModelConfig, RopeScaling


def frequencies(config: ModelConfig, *, local: bool = False) -> Float[Tensor, "half"]:
    """One frequency per pair of a head, in float32 as the models were trained with. `local`: of layers with a window."""
    theta = config.local_rope_theta if local and config.local_rope_theta is not None else config.rope_theta
    half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    freq = 1.0 / (theta**half)
    scaling = config.rope_scaling
    if scaling is None or local:
        return freq
    return _yarn(theta**half, scaling, theta) if scaling.kind == "yarn" else scaled(freq, scaling)


def length_of(config: ModelConfig, *, local: bool = False) -> float:
    """What cosines and sines are multiplied by."""
    return 1.0 if local or config.rope_scaling is None else config.rope_scaling.attention_factor


def yarn_attention_factor(factor: float, scale: float = 1.0) -> float:
    """The usual attention factor of yarn."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _yarn(period: Float[Tensor, "half"], scaling: RopeScaling, theta: float) -> Float[Tensor, "half"]:
    """Pairs that turn more than beta_fast times in the trained context keep their frequency, those that turn less than
    beta_slow times are divided by the factor, with a ramp between."""

    def pair(rotations: float) -> float:  # which pair turns so many times
        return len(period) * math.log(scaling.original_max_positions / (rotations * 2 * math.pi)) / math.log(theta)

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(period) - 1)
    high = high + 0.001 if low == high else high
    kept = 1 - ((torch.arange(len(period), dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return 1 / (scaling.factor * period) * (1 - kept) + 1 / period * kept


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
    freq: Float[Tensor, "half"], positions: Int[Tensor, "T"], dtype: torch.dtype, length: float = 1.0
) -> tuple[Float[Tensor, "T 1 d"], Float[Tensor, "T 1 d"]]:
    """Cosines and sines of a pass for both numbers of every pair, computed once and used by every layer. `length`: what both
    are multiplied by."""
    angle = positions[:, None].float() * freq
    cos, sin = angle.cos(), angle.sin()
    if length != 1.0:
        cos, sin = cos * length, sin * length
    return tuple(torch.cat(pair, dim=-1).to(dtype)[:, None] for pair in ((cos, cos), (-sin, sin)))  # type: ignore[return-value]


def rotate(
    x: Float[Tensor, "*g T heads d"], cos: Float[Tensor, "T 1 d"], sin: Float[Tensor, "T 1 d"]
) -> Float[Tensor, "*g T heads d"]:
    """Rotate the pair (i, i + d/2) of every head by the position's angle, in four operations: on an accelerator their number
    decides the time."""
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin
