"""A checkpoint's tensors, packed, are the same weights behind a file."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.models.backends import int8_weights
from draftwood.models.backends.int8_weights import Int8Weights
from draftwood.models.backends.quantised_blocks import Kind, pack, unpack
from draftwood.testing.parts.tiny import CONFIG, tiny_weights

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


@pytest.mark.parametrize("name", SHAPES)
def test_products_are_the_tensors_of_the_checkpoint_joined(name):
    config, tensors, weights = made(name)
    assert len(weights.layers) == config.num_layers
    for i, layer in enumerate(weights.layers):
        for ours, theirs in int8_weights.PRODUCTS.items():
            names = [f"model.layers.{i}.{n}" for n in theirs]
            right = torch.cat([tensors[f"{n}.weight"] for n in names])
            assert torch.equal(torch.cat([unpack(part) for part in layer.products[ours].parts]), unpack(pack(right)))
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


def test_pass_reads_every_product_and_the_head_once():
    _, _, weights = made("untied")
    parts = [part for layer in weights.layers for p in layer.products.values() for part in p.parts]
    assert weights.bytes_per_pass == sum(part.data.numel() for part in parts) + weights.head.data.numel()


def test_block_types_are_named_by_their_share_unless_all_are_of_8_bits():
    _, _, weights = made("untied")
    assert weights.block_types == ""
    four = replace(weights.head, kind=Kind.Q4_1, data=weights.head.data[:8])
    assert replace(weights, head=four).block_types == "Q8_0 + Q4_1 blocks"


def exact_in_four_bits(rows: int) -> Tensor:
    """Weights that 4 bits hold exactly."""
    nibbles = torch.arange(32).remainder(16).repeat(rows, 2)
    return 0.25 * nibbles.float() - 1.0


@pytest.mark.parametrize("odd_row", [None, 0, 39])
def test_all_slices_of_a_matrix_have_one_block_type(odd_row, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(int8_weights, "_SLICE", 16 * 64 * 4)  # sixteen rows
    weight = exact_in_four_bits(40)
    if odd_row is not None:
        weight[odd_row, 3] = 0.1
    found = int8_weights.TensorSource({"w": weight}).matrix("w")
    slices = list(found.slices)
    kind = Kind.Q4_1 if odd_row is None else Kind.Q8_0
    assert len(slices) == 3 and {x.kind for x in slices} == {found.kind} == {kind}
    again = int8_weights.TensorSource({"w": weight}).matrix("w").packed()
    assert torch.equal(again.data, pack(weight, kind).data)
