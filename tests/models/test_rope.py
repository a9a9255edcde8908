"""Rotary positions: only distances matter, and the frequencies are those of transformers."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from draftwood.core.config import ModelConfig, RopeScaling
from draftwood.models.rope import angles, frequencies, rotate

LLAMA3 = RopeScaling("llama3", 8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=64)
SCALINGS = {"plain": None, "linear": RopeScaling("linear", 3.0), "llama3": LLAMA3}


def config(scaling: RopeScaling | None = None, head_dim: int = 16, theta: float = 10_000.0) -> ModelConfig:
    shape: dict[str, Any] = {"vocab_size": 8, "hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2}
    return ModelConfig("llama", **shape, head_dim=head_dim, intermediate_size=8, rope_theta=theta, rope_scaling=scaling)


def theirs(scaling: RopeScaling | None) -> LlamaRotaryEmbedding:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling is LLAMA3:
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    shape: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 512}
    return LlamaRotaryEmbedding(transformers.LlamaConfig(**shape, rope_parameters=rope))


def turned(x: Tensor, positions: Tensor, scaling: RopeScaling | None = None) -> Tensor:
    return rotate(x, *angles(frequencies(config(scaling)), positions, x.dtype))


@pytest.fixture
def heads() -> Tensor:
    return torch.randn(7, 3, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", SCALINGS)
def test_frequencies_are_those_of_transformers(kind):
    assert torch.equal(frequencies(config(SCALINGS[kind])), theirs(SCALINGS[kind]).inv_freq)


@pytest.mark.parametrize("kind", SCALINGS)
def test_heads_are_turned_as_transformers_turns_them(kind, heads):
    positions = torch.tensor([0, 1, 2, 63, 64, 100, 511])
    cos, sin = theirs(SCALINGS[kind])(heads, positions[None])
    right, _ = apply_rotary_pos_emb(heads.transpose(0, 1)[None], heads.transpose(0, 1)[None], cos, sin)
    assert torch.equal(turned(heads, positions, SCALINGS[kind]), right[0].transpose(0, 1))


def test_another_pairing_would_be_noticed(heads):
    """Some families turn neighbours (0, 1), (2, 3), ... instead of (i, i + d/2)."""
    positions = torch.arange(7)
    cos, sin = (x[..., 8:] for x in angles(frequencies(config()), positions, heads.dtype))
    even, odd = heads[..., ::2], heads[..., 1::2]
    neighbours = torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
    assert not torch.allclose(turned(heads, positions), neighbours, atol=1e-2)


def test_position_zero_turns_nothing(heads):
    assert torch.equal(turned(heads, torch.zeros(7, dtype=torch.int64)), heads)


def test_turning_keeps_lengths(heads):
    far = turned(heads, torch.arange(7) * 1000)
    assert torch.allclose(far.norm(dim=-1), heads.norm(dim=-1), atol=1e-5)


@pytest.mark.parametrize("kind", SCALINGS)
def test_only_distances_matter(kind, heads):
    q, k = heads.double()[:1], heads.double()[1:2]

    def score(query: int, key: int) -> Tensor:
        at = [turned(x, torch.tensor([p]), SCALINGS[kind]) for x, p in ((q, query), (k, key))]
        return (at[0] * at[1]).sum(-1)

    assert torch.allclose(score(30, 21), score(9, 0), atol=1e-5)
    assert not torch.allclose(score(30, 20), score(9, 0), atol=1e-5)


def test_long_context_keeps_fast_pairs_and_slows_slow_ones():
    plain, stretched = frequencies(config()), frequencies(config(LLAMA3))
    ratio = plain / stretched
    turns = 64 * plain / (2 * torch.pi)  # within the trained context
    assert (ratio[turns > 4.0] == 1).all()
    assert torch.allclose(ratio[turns < 1.0], torch.tensor(8.0))
    assert ((ratio >= 1) & (ratio <= 8.0001)).all()
    assert (ratio.diff() >= 0).all()
    between = (turns < 4.0) & (turns > 1.0)
    assert between.any()
    assert ((ratio[between] > 1) & (ratio[between] < 8)).all()


def test_angles_are_made_in_float32_whatever_the_model_computes_in():
    positions = torch.tensor([100_000])
    fine = angles(frequencies(config()), positions, torch.float64)
    coarse = angles(frequencies(config()), positions, torch.bfloat16)
    for a, b in zip(fine, coarse, strict=True):
        assert a.dtype == torch.float64
        assert torch.equal(a.to(torch.bfloat16), b)  # bfloat16 positions would be off by hundreds
