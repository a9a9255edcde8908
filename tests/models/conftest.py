"""Small models in every form the loader reads, written to tmp_path. Nothing is downloaded."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from draftwood.core.config import ModelConfig
from draftwood.models.loading import hf_config
from draftwood.models.loading.detokenizer import BYTE_LETTERS
from draftwood.models.loading.tensor_names import expected
from draftwood.testing.parts.tiny import CONFIG

TINY = replace(
    CONFIG,
    vocab_size=264,
    num_layers=2,
    intermediate_size=64,
    max_positions=128,
    bos_token_id=256,
    eos_token_ids=(257,),
)
SPECIALS = ["<|bos|>", "<|end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o")]
VOCABULARY = [*sorted(BYTE_LETTERS, key=BYTE_LETTERS.__getitem__), *SPECIALS, *("".join(pair) for pair in MERGES)]
TEMPLATE = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def random_weights(config: ModelConfig = TINY, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under every name the config asks for."""
    noise = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=noise) * 0.1 for name, shape in expected(config).items()}


def make_backend() -> Tokenizer:
    """Byte-level BPE over every byte, six merges, two special tokens: 264 ids."""
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(VOCABULARY)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    return tokenizer


@pytest.fixture
def tiny() -> ModelConfig:
    return TINY


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return random_weights()


@pytest.fixture
def make_weights() -> Callable[..., dict[str, torch.Tensor]]:
    return random_weights


@pytest.fixture
def to_gguf() -> Callable[..., dict[str, np.ndarray]]:
    return as_stored


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2():
    """The embedded model: config, tensors, tokenizer. Converted once into the user's cache, as on any first start."""
    from draftwood.models.loading.load import load_weights

    return load_weights("smollm2")


@pytest.fixture
def child_env() -> Callable[[], dict[str, str]]:
    """The environment for a process of its own: it finds the sources that this one runs from."""
    return lambda: os.environ | {"PYTHONPATH": str(Path(hf_config.__file__).parents[3])}


@pytest.fixture
def write_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a Hugging Face folder; `config` and `tensors` may be changed to make it wrong."""

    def write(config: dict[str, Any] | None = None, tensors: dict[str, torch.Tensor] | None = None) -> Path:
        folder = tmp_path / "folder"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(hf_config.unparse(TINY) | (config or {})))
        save_file(random_weights() if tensors is None else tensors, folder / "model.safetensors")
        make_backend().save(str(folder / "tokenizer.json"))
        special = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "chat_template": TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(special))
        return folder

    return write


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k: halves of a head become neighbouring pairs."""
    out = np.empty_like(rows)
    size = rows.shape[0] // num_heads
    for head in range(num_heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = rows[head * size + i]
            out[head * size + 2 * i + 1] = rows[head * size + size // 2 + i]
    return out


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


NORMED_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def as_stored(config: ModelConfig, weights: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The tensors of a model as llama.cpp's converter would store them in float32."""
    stored: dict[str, np.ndarray] = {}
    for name, tensor in weights.items():
        array = tensor.float().numpy()
        if config.family in ("llama", "mistral") and "q_proj" in name:
            array = interleave(array, config.num_heads)
        if config.family in ("llama", "mistral") and "k_proj" in name:
            array = interleave(array, config.num_kv_heads)
        if config.norm_offset and "norm." in name:
            array = array + np.float32(config.norm_offset)
        for theirs, ours in (GGUF_NAMES | (NORMED_NAMES if config.post_norms else {})).items():
            name = name.replace(theirs, ours)
        stored[name] = array
    return stored


def metadata(config: ModelConfig) -> dict[str, Any]:
    """What llama.cpp's converter writes about a model and the tokenizer above."""
    arch = {"mistral": "llama", "gemma3_text": "gemma3"}.get(config.family, config.family)
    more: dict[str, Any] = {}
    if config.sliding_window:
        more[f"{arch}.attention.sliding_window"] = config.sliding_window
        if config.full_layers:
            pattern = [config.window(i) is not None for i in range(config.num_layers)]
            more[f"{arch}.attention.sliding_window_pattern"] = pattern
    for key, value in (("attn_logit", config.attention_cap), ("final_logit", config.logit_cap)):
        if config.norm_offset:
            more[f"{arch}.{key}_softcapping"] = float(value or 0)
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind != "llama3":
        more |= {f"{arch}.rope.scaling.type": scaling.kind, f"{arch}.rope.scaling.factor": scaling.factor}
        more[f"{arch}.rope.scaling.original_context_length"] = scaling.original_max_positions
    kinds = [3 if token in SPECIALS else 1 for token in VOCABULARY]
    return {
        "general.architecture": arch,
        f"{arch}.block_count": config.num_layers,
        f"{arch}.context_length": config.max_positions,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_heads,
        f"{arch}.attention.head_count_kv": config.num_kv_heads,
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(config.rms_eps),
        f"{arch}.rope.freq_base": float(config.rope_theta),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.chat_template": TEMPLATE,
        **more,
    }


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a GGUF file with the gguf package; keys set to None are left out, raw blocks come with their type."""
    import gguf

    def write(
        config: ModelConfig = TINY,
        tensors: dict[str, np.ndarray] | None = None,
        raw: dict[str, tuple[np.ndarray, str]] | None = None,
        name: str = "model.gguf",
        **changes: Any,
    ) -> Path:
        path = tmp_path / name
        meta = metadata(config) | {key.replace("__", "."): value for key, value in changes.items()}
        writer = gguf.GGUFWriter(path, meta.pop("general.architecture"))
        for key, value in meta.items():
            if value is None:
                continue
            add = {str: "string", bool: "bool", int: "uint32", float: "float32", list: "array"}[type(value)]
            getattr(writer, f"add_{add}")(key, value)
        for key, array in (as_stored(config, random_weights(config)) if tensors is None else tensors).items():
            writer.add_tensor(key, array)
        for key, (blocks, kind) in (raw or {}).items():
            writer.add_tensor(key, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
