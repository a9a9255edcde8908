"""A real decoder of a few thousand weights, made from a seed: the engine's truths in float64, without any download."""

import torch

from draftwood.core.config import ModelConfig
from draftwood.models.decoder import Decoder
from draftwood.models.names import expected

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


def tiny_decoder(seed: int = 0, *, config: ModelConfig = CONFIG, dtype: torch.dtype = torch.float64) -> Decoder:
    """Random weights, large enough that laws are neither flat nor certain."""
    noise = torch.Generator().manual_seed(seed)
    weights = {
        name: 1 + 0.1 * torch.randn(shape, generator=noise)
        if len(shape) == 1
        else 0.4 * torch.randn(shape, generator=noise)
        for name, shape in expected(config).items()
        if not (config.tie_embeddings and name == "lm_head.weight")
    }
    return Decoder.from_tensors(config, weights, dtype=dtype)
