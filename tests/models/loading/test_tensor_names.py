from dataclasses import replace

import pytest

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.loading.tensor_names import check_names, expected


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("family", ["llama", "llama with biases", "mistral", "qwen2", "qwen3"])
def test_expected_names_and_shapes_are_those_of_transformers(tiny: ModelConfig, family: str, tie: bool):
    import transformers

    from draftwood.models.loading import hf_config

    changes = {
        "llama with biases": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
        "mistral": {"family": "mistral", "sliding_window": 16},
        "qwen2": {"family": "qwen2", "qkv_bias": True},
        "qwen3": {"family": "qwen3", "qk_norm": True, "head_dim": 16},
    }
    config = replace(tiny, tie_embeddings=tie, **changes.get(family, {}))
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**hf_config.unparse(config), pad_token_id=None)
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    if tie:
        del shapes["lm_head.weight"]
    assert expected(config) == shapes


def test_a_whole_list_passes(tiny: ModelConfig):
    check_names(tiny, expected(tiny))


def test_buffers_and_a_tied_head_may_be_there(tiny: ModelConfig):
    extra = {"lm_head.weight": (264, 32), "model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}
    check_names(tiny, expected(tiny) | extra)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, "1 missing: model.norm.weight"),
        ({"model.layers.0.mlp.router.weight": (1,)}, "1 not expected: model.layers.0.mlp.router.weight"),
        ({"model.layers.0.self_attn.q_proj.bias": (32,)}, "1 not expected: model.layers.0.self_attn.q_proj.bias"),
        ({"model.norm.weight": (31,)}, r"model.norm.weight is \(31,\), expected \(32,\)"),
        ({"lm_head.weight": (263, 32)}, r"lm_head.weight is \(263, 32\)"),
    ],
)
def test_whatever_does_not_fit_is_named(tiny: ModelConfig, change, message):
    shapes = {name: shape for name, shape in (expected(tiny) | change).items() if shape is not None}
    with pytest.raises(WeightsError, match=f"(?s)somewhere.*{message}.*hint:"):
        check_names(tiny, shapes, where="somewhere")


def test_an_untied_head_must_be_there(tiny: ModelConfig):
    with pytest.raises(WeightsError, match=r"missing: lm_head.weight"):
        check_names(replace(tiny, tie_embeddings=False), expected(tiny))


def test_an_absurd_number_of_layers_is_refused_at_once(tiny: ModelConfig):
    with pytest.raises(WeightsError, match="too few for 1000000000 layers"):
        check_names(replace(tiny, num_layers=10**9), expected(tiny))
