"""A real decoder of a few thousand weights, made from a seed: for tests in float64 without any download."""

import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.models.decoder import Decoder
from draftwood.models.loading.tensor_names import expected
from draftwood.runners.cpu import CpuRunner

CONFIG = ModelConfig(
    family="llama",
    vocab_size=61,
    hidden_size=32,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=48,
    max_positions=256,
    tie_embeddings=True,
)


def tiny_weights(seed: int = 0, config: ModelConfig = CONFIG) -> dict[str, Tensor]:
    """Random weights, large enough that distributions are neither flat nor certain."""
    noise = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(shape, generator=noise) for name, shape in expected(config).items()}
    return {name: 1 + 0.1 * x if name.endswith("norm.weight") else 0.4 * x for name, x in drawn.items()}


def tiny_runner(seed: int = 0, *, config: ModelConfig = CONFIG, dtype: torch.dtype = torch.float64) -> CpuRunner:
    """The float64 model as a target, without a cache."""
    return CpuRunner(tiny_decoder(seed, config=config, dtype=dtype))


def tiny_decoder(seed: int = 0, *, config: ModelConfig = CONFIG, dtype: torch.dtype = torch.float64) -> Decoder:
    """The float backend over these weights."""
    return Decoder.from_tensors(config, tiny_weights(seed, config), dtype=dtype)
