"""A transformers model is checked before its first use: one that does not follow a tree is refused by name."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from draftwood.errors import ModelError, WeightsError
from draftwood.models.hf.model import HFModel

pytestmark = pytest.mark.slow

SHAPE: dict[str, Any] = {"vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
NO_ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LLAMA: dict[str, Any] = SHAPE | {"num_key_value_heads": 2, "intermediate_size": 64, **NO_ENDS}


def loud(net: Any) -> Any:
    """Weights large enough that a wrong mask is heard."""
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=noise) * 0.2)
    return net


def llama(kind: type = transformers.LlamaForCausalLM, **changes: Any) -> Any:
    return loud(kind(transformers.LlamaConfig(**LLAMA | changes)))


class Deaf(transformers.LlamaForCausalLM):
    """Ignores one of the things a tree depends on."""

    ignores = ""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **{**kwargs, self.ignores: None} if self.ignores in kwargs else kwargs)


class DeafToMasks(Deaf):
    ignores = "attention_mask"


class DeafToPositions(Deaf):
    ignores = "position_ids"


def test_model_that_follows_the_tree_is_accepted():
    assert HFModel.wrap(llama()).num_layers == 2
    assert HFModel.wrap(llama(Deaf)).num_layers == 2  # the twin below is refused for what it ignores, not for its class


class Leaky(transformers.LlamaForCausalLM):
    """Lets a little of what is masked through."""

    def forward(self, *args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        mask = attention_mask if attention_mask is None else attention_mask.clamp_min(-6)
        return super().forward(*args, attention_mask=mask, **kwargs)


def test_small_leak_is_heard_too():
    with pytest.raises(ModelError, match="does not honour tree masks"):
        HFModel.wrap(llama(Leaky))


@pytest.mark.parametrize("kind", [DeafToMasks, DeafToPositions])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_model_that_ignores_masks_or_positions_is_refused(kind, dtype):
    HFModel.wrap(llama().to(dtype))
    with pytest.raises(ModelError, match=r"^org/net does not honour tree masks: a node's logits are .*\nhint: "):
        HFModel.wrap(llama(kind).to(dtype), "org/net")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (transformers.MambaConfig(**SHAPE, eos_token_id=None, pad_token_id=0), "layers of kind linear_attention"),
        (transformers.GPTNeoConfig(**LLAMA, attention_types=[[["global", "local"], 1]]), "layers of kind local"),
        (transformers.BloomConfig(**SHAPE, **NO_ENDS), "ValueError"),  # positions from a flat mask
        (transformers.MptConfig(vocab_size=101, d_model=32, n_layers=2, n_heads=4), "a node's logits"),  # by row
        (transformers.BertConfig(**LLAMA), "a node's logits"),  # sees what comes after
    ],
    ids=lambda c: getattr(c, "model_type", ""),
)
def test_family_that_cannot_follow_a_tree_is_refused(config, why):
    net = loud(transformers.AutoModelForCausalLM.from_config(config))
    with pytest.raises(ModelError, match="does not honour tree masks") as refused:
        HFModel.wrap(net)
    assert why in str(refused.value)


def test_undefined_weights_are_named_and_not_blamed_on_the_mask():
    net = llama()
    with torch.no_grad():
        net.model.layers[1].mlp.up_proj.weight[3, 4] = torch.nan
    with pytest.raises(WeightsError, match=r"^org/net: tensor 'model.layers.1.mlp.up_proj.weight' holds .*NaN"):
        HFModel.wrap(net, "org/net")


def test_logits_that_overflow_are_not_blamed_on_the_mask():
    net = llama().half()
    with torch.no_grad():
        net.lm_head.weight.fill_(6e4)
    with pytest.raises(ModelError, match=r"^org/net: its logits overflow in float16.*\nhint: use dtype float32"):
        HFModel.wrap(net, "org/net")


def test_rows_are_those_a_model_really_keeps():
    """Latent attention keeps one head: what keys and values are made from, and beside it the turned keys."""
    changes: dict[str, Any] = {"kv_lora_rank": 20, "qk_rope_head_dim": 8, "num_key_value_heads": 4}
    heads: dict[str, Any] = {"q_lora_rank": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
    experts: dict[str, Any] = {"n_routed_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
    config = transformers.DeepseekV3Config(**LLAMA | changes | heads | experts, n_group=1, topk_group=1)
    model = HFModel.wrap(loud(transformers.DeepseekV3ForCausalLM(config)))
    assert [(s.name, s.heads, s.width) for s in model.cache_specs[:2]] == [("k0", 1, 20), ("v0", 1, 8)]


def test_windows_are_tried_narrow_and_left_as_they_were():
    config = transformers.MistralConfig(**LLAMA, sliding_window=50)
    model = HFModel.wrap(loud(transformers.MistralForCausalLM(config)))
    assert model.windows == {"": 50}
    assert model.net.config.sliding_window == 50


def test_window_that_the_model_does_not_apply_is_noticed():
    net = llama()
    net.config.sliding_window = 50  # a claim: no layer of a Llama reads it
    with pytest.raises(ModelError, match="does not honour tree masks"):
        HFModel.wrap(net)


def test_head_that_is_not_norm_and_linear_alone_is_not_offered():
    class Louder(transformers.LlamaForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out: Any = super().forward(*args, **kwargs)
            out.logits = out.logits * 2
            return out

    model = HFModel.wrap(llama(Louder))
    with pytest.raises(ModelError, match="not a final norm and a linear head alone"):
        model.head(torch.zeros(1, 32))
    HFModel.wrap(llama()).head(torch.zeros(1, 32))


def test_trial_leaves_no_hooks_behind():
    net = llama()
    HFModel.wrap(net)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.model.layers)
