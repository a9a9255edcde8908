"""A checkpoint's tensors, packed, are the same weights behind a file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_weights import INDEX, Int8Weights
from draftwood.models.backends.quantised_blocks import Packed, pack, unpack
from draftwood.testing.tiny import CONFIG, tiny_weights

SHAPES: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "qkv bias": {"qkv_bias": True, "tie_embeddings": False},
    "qk norm": {"qk_norm": True, "head_dim": 16},
}


def made(name: str) -> tuple[ModelConfig, dict[str, Tensor], Int8Weights]:
    config = replace(CONFIG, **SHAPES[name])
    tensors = tiny_weights(1, config)
    return config, tensors, int8_weights.from_tensors(config, tensors)


def flat(weights: Int8Weights) -> dict[str, Packed | Tensor]:
    """Everything by a name of its own."""
    found: dict[str, Packed | Tensor] = {"embedding": weights.embedding, "head": weights.head, "norm": weights.norm}
    for i, layer in enumerate(weights.layers):
        found |= {f"{i}.{name}": product.weight for name, product in layer.products.items()}
        found |= {f"{i}.{name}.bias": p.bias for name, p in layer.products.items() if p.bias is not None}
        found |= {f"{i}.{name}": norm for name, norm in layer.norms.items()}
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_products_are_the_tensors_of_the_checkpoint_joined(name):
    config, tensors, weights = made(name)
    assert len(weights.layers) == config.num_layers
    for i, layer in enumerate(weights.layers):
        for ours, theirs in int8_weights.PRODUCTS.items():
            names = [f"model.layers.{i}.{n}" for n in theirs]
            right = torch.cat([tensors[f"{n}.weight"] for n in names])
            assert torch.equal(unpack(layer.products[ours].weight), unpack(pack(right)))
            bias = layer.products[ours].bias
            assert (bias is not None) == (f"{names[0]}.bias" in tensors)
            if bias is not None:
                assert torch.equal(bias, torch.cat([tensors[f"{n}.bias"] for n in names]))
        for ours, theirs in int8_weights.NORMS.items():
            key = f"model.layers.{i}.{theirs}.weight"
            assert (ours in layer.norms) == (key in tensors)
            assert ours not in layer.norms or torch.equal(layer.norms[ours], tensors[key])
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])
    assert torch.equal(unpack(weights.head), unpack(pack(head)))
    assert (weights.head is weights.embedding) == config.tie_embeddings


@pytest.mark.parametrize("name", SHAPES)
def test_file_gives_back_every_byte(name, tmp_path: Path):
    config, _, weights = made(name)
    int8_weights.save(weights, tmp_path, {"fingerprint": "abc"})
    loaded, note = int8_weights.load(tmp_path, config)
    assert note == {"fingerprint": "abc"}
    left, right = flat(weights), flat(loaded)
    assert left.keys() == right.keys()
    for key, mine in left.items():
        theirs = right[key]
        if isinstance(mine, Packed):
            assert isinstance(theirs, Packed) and torch.equal(mine.data, theirs.data)
            assert (mine.rows, mine.columns, mine.kind) == (theirs.rows, theirs.columns, theirs.kind)
            assert theirs.data.data_ptr() % 64 == 0
        else:
            assert isinstance(theirs, Tensor) and torch.equal(mine, theirs)
    assert (loaded.head is loaded.embedding) == config.tie_embeddings
    assert loaded.bytes_per_pass == weights.bytes_per_pass


def test_pass_reads_every_product_and_the_head_once():
    _, _, weights = made("untied")
    products = [p.weight for layer in weights.layers for p in layer.products.values()]
    assert weights.bytes_per_pass == sum(p.data.numel() for p in products) + weights.head.data.numel()


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        *(("untied", entry) for entry in ("embedding", "head", "norm", "0.qkv", "3.down", "1.attention_norm", "2.mlp_norm")),
        *(("qk norm", entry) for entry in ("0.q_norm", "3.k_norm")),
        *(("biases", entry) for entry in ("0.qkv.bias", "1.out.bias", "2.gate_up.bias", "3.down.bias")),
    ],
)  # fmt: skip
def test_missing_entry_is_named(name, entry, tmp_path: Path):
    config, _, weights = made(name)
    int8_weights.save(weights, tmp_path, {})
    index = json.loads((tmp_path / INDEX).read_text())
    left = [e for e in index["tensors"] if e["name"] != entry]
    assert len(left) == len(index["tensors"]) - 1
    (tmp_path / INDEX).write_text(json.dumps(index | {"tensors": left}))
    with pytest.raises(WeightsError, match=f"has no {entry}\n"):
        int8_weights.load(tmp_path, config)
