"""The config of a head that has no decoder layer: its two sizes, and the target's own where it is known."""

from dataclasses import replace

from draftwood.core.config import ModelConfig
from draftwood.train.formats.exchange import Target


def sizes_only(width: int, vocab_size: int, target: Target | None) -> ModelConfig:
    if target is not None:
        return replace(target.config, num_layers=1, hidden_size=width, vocab_size=vocab_size)
    return ModelConfig("llama", vocab_size, width, 1, num_heads=1, num_kv_heads=1, head_dim=2, intermediate_size=1)
