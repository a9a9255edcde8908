"""A model whose matrices are blocks of many types, as in the files that llama.cpp writes."""

from dataclasses import replace

import torch

import gguf_blocks
from draftwood.core.config import ModelConfig
from draftwood.models.backends.int8_weights import Int8Weights, LayerWeights, Product
from draftwood.models.backends.quantised_blocks import Kind
from draftwood.testing.parts.tiny import CONFIG

CONFIG_256 = replace(CONFIG, hidden_size=256, intermediate_size=512, num_heads=4, num_kv_heads=2, head_dim=64)
LAYERS = (  # q, k, v, out, gate, up, down
    (Kind.Q4_K, Kind.Q4_K, Kind.Q6_K, Kind.IQ4_NL, Kind.Q4_K, Kind.Q4_K, Kind.Q6_K),
    (Kind.Q5_K, Kind.Q4_0, Kind.Q5_0, Kind.Q4_1, Kind.Q5_1, Kind.Q8_0, Kind.IQ4_XS),
    (Kind.F16, Kind.BF16, Kind.F32, Kind.F16, Kind.Q4_K, Kind.F32, Kind.BF16),
    (Kind.Q8_0, Kind.Q8_0, Kind.Q8_0, Kind.Q5_K, Kind.Q6_K, Kind.Q6_K, Kind.Q4_K),
)


def mixed(*, embedding: Kind = Kind.Q6_K, head: Kind | None = None) -> tuple[ModelConfig, Int8Weights]:
    """`head` None: tied to the embedding."""
    config = replace(CONFIG_256, tie_embeddings=head is None)
    heads, inner, wide = config.num_heads * config.head_dim, config.intermediate_size, config.hidden_size
    entries = config.num_kv_heads * config.head_dim
    table = gguf_blocks.packed(embedding, config.vocab_size, wide)
    layers: list[LayerWeights] = []
    for i, (q, k, v, out, gate, up, down) in enumerate(LAYERS):
        rows = ((q, heads), (k, entries), (v, entries))
        products = {
            "qkv": Product.of([gguf_blocks.packed(kind, count, wide, i) for kind, count in rows]),
            "out": Product((gguf_blocks.packed(out, wide, heads, i),)),
            "gate_up": Product.of(
                [gguf_blocks.packed(kind, inner, wide, i + 10 * j) for j, kind in enumerate((gate, up))]
            ),
            "down": Product((gguf_blocks.packed(down, wide, inner, i),)),
        }
        norms = {"attention_norm": torch.ones(wide), "mlp_norm": torch.ones(wide)}
        layers.append(LayerWeights(products, norms))
    last = table if head is None else gguf_blocks.packed(head, config.vocab_size, wide, 7)
    return config, Int8Weights(table, last, torch.ones(wide), tuple(layers))
