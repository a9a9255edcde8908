import math
from dataclasses import replace

import numpy as np
import pytest

from draftwood.core.config import ModelConfig, RopeScaling
from draftwood.errors import ModelError
from draftwood.models.loading.gguf.config import read_config, recover_scaling
from draftwood.models.loading.gguf.header import read_header


def test_what_a_file_leaves_out_follows_from_the_rest(write_gguf, tiny: ModelConfig):
    left_out = {"llama.attention.key_length": None, "llama.rope.freq_base": None, "tokenizer.ggml.bos_token_id": None}
    config = read_config(read_header(write_gguf(**left_out)))
    assert config == replace(tiny, bos_token_id=None, rope_theta=10_000.0)
    assert config.vocab_size == 264  # one for each token listed
    many = read_config(
        read_header(write_gguf(replace(tiny, num_kv_heads=4), **{"llama.attention.head_count_kv": None}))
    )
    assert many.num_kv_heads == many.num_heads == 4


def test_small_numbers_are_those_that_were_written(write_gguf, tiny: ModelConfig):
    config = read_config(read_header(write_gguf(replace(tiny, rms_eps=1e-6, rope_theta=500_000.0))))
    assert (config.rms_eps, config.rope_theta) == (1e-6, 500_000.0)  # 9.999999974752427e-07 in the file


def test_both_end_tokens_end_a_text(write_gguf):
    config = read_config(read_header(write_gguf(**{"tokenizer.ggml.eot_token_id": 256})))
    assert config.eos_token_ids == (257, 256)


def test_a_window_makes_it_a_mistral(write_gguf):
    config = read_config(read_header(write_gguf(**{"llama.attention.sliding_window": 16})))
    assert (config.family, config.sliding_window) == ("mistral", 16)


def test_a_head_of_its_own_is_seen(write_gguf, tiny: ModelConfig):
    assert not read_config(read_header(write_gguf(replace(tiny, tie_embeddings=False)))).tie_embeddings


def test_linear_scaling_is_read(write_gguf):
    keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert read_config(read_header(write_gguf(**keys))).rope_scaling == RopeScaling("linear", 4.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"general.architecture": "mamba"},
            "architecture 'mamba' is not supported; known: llama, .*hint: .*hf:NAME",
        ),
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.block_count": "two"}, "'llama.block_count' should be one number"),
        ({"llama.attention.head_count_kv": [2, 1]}, "'llama.attention.head_count_kv' should be one number"),
        ({"llama.attention.head_count": 0}, "num_heads must be positive"),
        ({"llama.rope.freq_base": -1.0}, "'llama.rope.freq_base' should be a positive number"),
        ({"llama.expert_count": 8}, "llama.expert_count = 8 is not supported"),
        ({"llama.logit_scale": 0.5}, "llama.logit_scale = 0.5 is not supported"),
        ({"llama.attention.value_length": 4}, "value_length = 4 differs from the head size 8"),
        ({"llama.rope.dimension_count": 4}, "dimension_count = 4 differs from the head size 8"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling 'longrope' is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "'llama.rope.scaling.factor' is missing"),
        ({"llama.attn_logit_softcapping": 30.0}, "llama.attn_logit_softcapping = 30.0 is not supported"),
        (
            {"llama.attention.sliding_window": 4, "llama.attention.sliding_window_pattern": [True]},
            "sliding_window_pattern has 1 entries for 2 layers",
        ),
    ],
)
def test_what_the_decoder_cannot_run_is_refused_by_name(write_gguf, keys, message):
    header = read_header(write_gguf(**keys))
    with pytest.raises(ModelError, match=f"(?s){message}") as caught:
        read_config(header)
    assert "model.gguf" in str(caught.value) or "model config" in str(caught.value)


def llama3_divisors(factor: float, theta: float, head_dim: int, low=1.0, high=4.0, original=8192) -> np.ndarray:
    """As llama.cpp's converter makes them, one frequency at a time, by wavelength."""
    out = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


@pytest.mark.parametrize(("factor", "head_dim"), [(8.0, 128), (32.0, 64), (32.0, 128)])
def test_llama_3_scaling_is_recovered_from_its_divisors(
    write_gguf, tiny: ModelConfig, to_gguf, make_weights, factor, head_dim
):
    config = replace(tiny, head_dim=head_dim, rope_theta=500_000.0)
    divisors = llama3_divisors(factor, 500_000.0, head_dim)
    assert ((divisors > 1) & (divisors < factor)).any()  # the ramp is really there
    stored = to_gguf(config, make_weights(config)) | {"rope_freqs.weight": divisors}
    read = read_config(read_header(write_gguf(config, tensors=stored)))
    assert read == replace(config, rope_scaling=RopeScaling("llama3", factor, 1.0, 4.0, 8192))


def test_even_divisors_are_linear_scaling_or_none():
    assert recover_scaling(np.ones(4, np.float32), 1e4, 8, 8192, where="f") is None
    assert recover_scaling(np.full(4, 4.0, np.float32), 1e4, 8, 8192, where="f") == RopeScaling("linear", 4.0)


@pytest.mark.parametrize(
    "divisors",
    [
        llama3_divisors(8.0, 500_000.0, 64, high=8.0),
        llama3_divisors(8.0, 500_000.0, 64, original=4096),
        np.linspace(1, 8, 32, dtype=np.float32),
    ],
)
def test_divisors_of_no_known_rule_are_refused(divisors):
    with pytest.raises(ModelError, match=r"(?s)rope_freqs.weight follows no known rule.*hint:"):
        recover_scaling(divisors, 500_000.0, 64, 8192, where="f")


@pytest.mark.parametrize("divisors", [np.ones(3, np.float32), np.array([1, 1, 1, -8], np.float32)])
def test_divisors_of_the_wrong_kind_are_refused(divisors):
    with pytest.raises(ModelError, match=r"expected .* positive divisors"):
        recover_scaling(divisors, 1e4, 8, 8192, where="f")
