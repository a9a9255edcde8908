from dataclasses import replace

import pytest

from draftwood.core.config import ModelConfig, RopeScaling
from draftwood.errors import ModelError
from draftwood.models.loading.hf_config import parse, unparse

SHAPE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(family: str = "llama", **keys) -> ModelConfig:
    return parse({"model_type": family, **SHAPE, "num_key_value_heads": None, **keys})


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_missing_key_means_what_it_means_to_transformers(family: str):
    from transformers import AutoConfig

    shape = SHAPE | {"num_attention_heads": 32, "hidden_size": 512}
    ours = parse({"model_type": family, **shape})
    theirs = AutoConfig.for_model(family, **shape)
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", 16)
    assert ours.rms_eps == theirs.rms_norm_eps
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.max_positions == theirs.max_position_embeddings
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_window == (theirs.sliding_window if family == "mistral" else None)


def test_families_differ_in_their_biases_and_norms():
    assert not config("llama").qkv_bias and not config("llama").qk_norm
    biased = config("llama", attention_bias=True, mlp_bias=True)
    assert biased.qkv_bias and biased.out_bias and biased.mlp_bias
    qwen2 = config("qwen2")
    assert qwen2.qkv_bias and not qwen2.out_bias
    assert config("qwen3").qk_norm and not config("qwen3").qkv_bias


@pytest.mark.parametrize("old", [True, False])
def test_rope_is_read_in_both_spellings(old: bool):
    def rope(kind: str, **keys):
        if old:
            return config(rope_theta=5e5, rope_scaling={"type": kind, **keys})
        return config(rope_parameters={"rope_theta": 5e5, "rope_type": kind, **keys})

    assert rope("default").rope_scaling is None
    assert rope("linear", factor=2).rope_scaling == RopeScaling("linear", 2.0)
    assert rope("llama3", **LLAMA3).rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    assert rope("default").rope_theta == 5e5


def test_a_window_switched_off_is_off():
    assert config("mistral", sliding_window=None).sliding_window is None
    assert config("mistral", sliding_window=64).sliding_window == 64
    assert config("qwen2", sliding_window=4096, use_sliding_window=False).sliding_window is None


def test_end_tokens_of_both_files_count():
    raw = {"model_type": "llama", **SHAPE, "eos_token_id": 2}
    assert parse(raw, {"eos_token_id": [2, 7]}).eos_token_ids == (2, 7)
    assert parse(raw).eos_token_ids == (2,)
    assert parse({**raw, "eos_token_id": None}).eos_token_ids == ()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "mamba"}, "model type 'mamba' has no decoder here"),
        ({"model_type": None}, "model type None"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "32"}, "'hidden_size' should be an integer, it is '32'"),
        ({"rms_norm_eps": 0}, "'rms_norm_eps' should be a positive number"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' should be true or false"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised with 'gptq'.*hint:"),
        ({"model_type": "qwen3", "layer_types": ["linear_attention"] * 2}, "layer types .'linear_attention'"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "rope type 'longrope' is not supported"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
            "rope type 'yarn' in",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope type 'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "'factor' is missing"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "one rope per layer type"),
        ({"rope_scaling": "linear"}, "'rope_scaling' should be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"eos_token_id": "</s>"}, "token id '</s>' is not a number"),
        ({"num_attention_heads": 0}, "num_heads must be positive"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
    ],
)
def test_what_the_decoder_cannot_run_is_refused_by_name(keys, message):
    with pytest.raises(ModelError, match=f"(?s){message}"):
        parse({"model_type": "llama", **SHAPE, **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "mamba"},
        {"hidden_act": "gelu"},
        {"layer_types": ["linear_attention"]},
        {"rope_scaling": {"rope_type": "longrope", "factor": 2}},
        {"model_type": "gemma2", "hidden_activation": "gelu"},
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
        {"partial_rotary_factor": 0.5},
    ],
)
def test_an_architecture_that_the_decoder_refuses_points_to_transformers(keys):
    with pytest.raises(ModelError, match=r"\nhint: load it as hf:org/name, which runs it through transformers"):
        parse({"model_type": "llama", **SHAPE, **keys}, name="org/name")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": RopeScaling("linear", 2.0), "eos_token_ids": (1, 2), "bos_token_id": None},
        {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 64), "tie_embeddings": False},
        {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
        {"family": "mistral", "sliding_window": 16},
        {"family": "mistral"},
        {"rope_scaling": RopeScaling("yarn", 4.0, original_max_positions=32, attention_factor=1.25, truncate=False)},
        {"family": "qwen2", "qkv_bias": True, "sliding_window": 8, "full_layers": (0,)},
        {"family": "qwen2", "qkv_bias": True},
        {"family": "qwen3", "qk_norm": True, "head_dim": 16},
    ],
)
def test_a_written_config_reads_back_the_same(tiny: ModelConfig, changes):
    wanted = replace(tiny, **changes)
    assert parse(unparse(wanted)) == wanted


def test_a_shape_that_config_json_cannot_say_is_not_written(tiny: ModelConfig):
    with pytest.raises(ModelError, match=r"no config.json describes this model"):
        unparse(replace(tiny, qkv_bias=True, out_bias=False))
