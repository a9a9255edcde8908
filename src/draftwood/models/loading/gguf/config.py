"""Converts the metadata of a GGUF file into a ModelConfig; refuses what the decoder cannot run as trained."""

import math
from typing import Any

import numpy as np
import torch

from draftwood.core.config import Family, ModelConfig, RopeScaling
from draftwood.errors import ModelError
from draftwood.models.loading.gguf.header import Header
from draftwood.models.loading.gguf.weights import ROPE_FREQS, dequantise
from draftwood.models.loading.hf_config import gemma_arithmetic
from draftwood.models.rope import scaled, yarn_attention_factor

# A file of architecture "llama" may hold a Mistral model: the two differ in the sliding window alone.
ARCHITECTURES: dict[str, Family] = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3": "gemma3_text",
}  # fmt: skip

# Keys that change the arithmetic in ways the decoder does not have, with the one value that changes nothing.
NEUTRAL: dict[str, Any] = {
    "expert_count": 0,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "attention.scale": None,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
}
CAPS = {"attention_cap": "attn_logit_softcapping", "logit_cap": "final_logit_softcapping"}
# The files do not say what scores are divided by; the models of these sizes use hidden size / heads instead of head_dim.
LARGEST = {"gemma2": 46, "gemma3": 62}


def read_config(header: Header) -> ModelConfig:
    """The shape of the model in `header`; ModelError names the key that is missing or not supported."""
    meta = header.metadata
    arch = meta.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise _unsupported(header, f"architecture {arch!r} is not supported; known: {', '.join(ARCHITECTURES)}")
    for key, neutral in NEUTRAL.items():
        value = _scalar(header, f"{arch}.{key}", neutral)
        if value != neutral:
            raise _unsupported(header, f"{arch}.{key} = {value} is not supported")
    heads = _integer(header, f"{arch}.attention.head_count")
    hidden = _integer(header, f"{arch}.embedding_length")
    head_dim = _integer(header, f"{arch}.attention.key_length", hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if _integer(header, f"{arch}.{key}", head_dim) != head_dim:
            raise ModelError(
                f"{header.path}: {arch}.{key} = {meta[f'{arch}.{key}']} differs from the head size {head_dim}"
            )
    layers = _integer(header, f"{arch}.block_count")
    window, full_layers = _windows(header, arch, layers)
    tokens = meta.get("tokenizer.ggml.tokens")
    theta = _real(header, f"{arch}.rope.freq_base", 10_000.0)
    more: dict[str, Any] = {"full_layers": full_layers}
    if arch in LARGEST:
        scalar = hidden / heads if layers == LARGEST[arch] else head_dim
        more |= gemma_arithmetic(hidden, None if scalar == head_dim else scalar)
        usual = {"attention_cap": 50.0, "logit_cap": 30.0} if arch == "gemma2" else {}
        for name, key in CAPS.items():
            cap = float(_scalar(header, f"{arch}.{key}", usual.get(name, 0.0)))
            more[name] = float(str(np.float32(cap))) if cap else None
        if arch == "gemma3" and window:
            more["local_rope_theta"] = _real(header, f"{arch}.rope.freq_base_swa", 10_000.0)
    else:
        for key in CAPS.values():
            if _scalar(header, f"{arch}.{key}", 0.0):
                raise _unsupported(header, f"{arch}.{key} = {meta[f'{arch}.{key}']} is not supported")
    return ModelConfig(
        family="mistral" if window and arch == "llama" else ARCHITECTURES[arch],
        vocab_size=_integer(header, f"{arch}.vocab_size", len(tokens) if isinstance(tokens, list) else 0),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=_integer(header, f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=_integer(header, f"{arch}.feed_forward_length"),
        rms_eps=_real(header, f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=_rope_scaling(header, arch, theta, head_dim),
        max_positions=_integer(header, f"{arch}.context_length"),
        tie_embeddings="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        out_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in header.tensors,
        qk_norm=arch in ("qwen3", "gemma3"),
        sliding_window=window,
        bos_token_id=_token(header, "bos"),
        eos_token_ids=tuple(
            dict.fromkeys(token for token in (_token(header, "eos"), _token(header, "eot")) if token is not None)
        ),
        **more,
    )


def _windows(header: Header, arch: str, layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The sliding window, and the layers without it: every n-th, or those of a list."""
    key = f"{arch}.attention.sliding_window"
    window = _integer(header, key, 4096 if arch == "gemma2" else 0) or None
    pattern = header.metadata.get(f"{key}_pattern", {"gemma2": 2, "gemma3": 6}.get(arch, 0))
    if window is None:
        return None, ()
    if isinstance(pattern, (list, np.ndarray)):
        if len(pattern) != layers:
            raise ModelError(f"{header.path}: {key}_pattern has {len(pattern)} entries for {layers} layers")
        full = tuple(i for i, has_window in enumerate(pattern) if not has_window)
    else:
        step = _integer(header, f"{key}_pattern", pattern)
        full = tuple(i for i in range(layers) if step and (i + 1) % step == 0)
    return (None, ()) if len(full) == layers else (window, full)


def _unsupported(header: Header, what: str) -> ModelError:
    return ModelError(
        f"{header.path}: {what}\n"
        "hint: load the model's Hugging Face folder as hf:NAME, which runs it through transformers"
    )


def _token(header: Header, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    return _integer(header, key) if key in header.metadata else None


def _rope_scaling(header: Header, arch: str, theta: float, head_dim: int) -> RopeScaling | None:
    kind = header.metadata.get(f"{arch}.rope.scaling.type", "none")
    if kind == "yarn":
        return _yarn(header, arch)
    if kind not in ("none", "linear"):
        raise _unsupported(header, f"rope scaling {kind!r} is not supported; known: linear, yarn, and that of Llama 3")
    factor = _real(header, f"{arch}.rope.scaling.factor", 1.0) if kind == "linear" else 1.0
    if ROPE_FREQS not in header.tensors:
        return RopeScaling("linear", factor) if factor != 1.0 else None
    if factor != 1.0:
        raise ModelError(f"{header.path}: both linear rope scaling and {ROPE_FREQS} are given")
    factors = dequantise(header, header.tensors[ROPE_FREQS]).reshape(-1)
    original = _integer(header, f"{arch}.rope.scaling.original_context_length", 8192)
    return recover_scaling(factors, theta, head_dim, original, where=str(header.path))


def _yarn(header: Header, arch: str) -> RopeScaling:
    at = f"{arch}.rope.scaling"
    factor = _real(header, f"{at}.factor")
    return RopeScaling(
        "yarn",
        factor,
        original_max_positions=_integer(header, f"{at}.original_context_length"),
        beta_fast=_real(header, f"{at}.yarn_beta_fast", 32.0),
        beta_slow=_real(header, f"{at}.yarn_beta_slow", 1.0),
        attention_factor=_real(header, f"{at}.attn_factor", 1.0) * yarn_attention_factor(factor),
    )


def recover_scaling(
    factors: np.ndarray, theta: float, head_dim: int, original: int, *, where: str
) -> RopeScaling | None:
    """The RopeScaling that divides the frequencies by exactly these factors; refused if there is none.

    The files keep only the divisors, not the four numbers they were made from. Llama 3.1 and later were made with
    low 1 and high 4, so the largest divisor is the factor, and the rest must follow from it.
    """
    if factors.shape != (head_dim // 2,) or not (factors > 0).all():
        raise ModelError(
            f"{where}: {ROPE_FREQS} has shape {factors.shape}, expected {(head_dim // 2,)} positive divisors"
        )
    factor = float(factors.max())
    if np.allclose(factors, 1.0, rtol=1e-5):
        return None
    if np.allclose(factors, factor, rtol=1e-5):
        return RopeScaling("linear", factor)
    guess = RopeScaling("llama3", factor, 1.0, 4.0, original)
    freq = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if np.allclose(factors, freq / scaled(freq, guess), rtol=1e-4):
        return guess
    raise ModelError(
        f"{where}: {ROPE_FREQS} follows no known rule (largest divisor {factor:g}, original context {original})\n"
        "hint: linear and Llama 3 scaling are supported; a Hugging Face folder of the same model may say which it is"
    )


_REQUIRED = object()


def _scalar(header: Header, key: str, default: Any = _REQUIRED) -> Any:
    value = header.metadata.get(key, default)
    if value is _REQUIRED:
        raise ModelError(f"{header.path}: metadata key {key!r} is missing\nhint: is this a whole language model?")
    if isinstance(value, (list, np.ndarray, str)):
        raise ModelError(f"{header.path}: metadata key {key!r} should be one number, it is {type(value).__name__}")
    return value


def _integer(header: Header, key: str, default: Any = _REQUIRED) -> int:
    value = _scalar(header, key, default)
    if not isinstance(value, int) or value < 0:
        raise ModelError(f"{header.path}: metadata key {key!r} should be a count, it is {value!r}")
    return value


def _real(header: Header, key: str, default: Any = _REQUIRED) -> float:
    value = float(_scalar(header, key, default))
    if not (math.isfinite(value) and value > 0):
        raise ModelError(f"{header.path}: metadata key {key!r} should be a positive number, it is {value!r}")
    return float(str(np.float32(value)))  # stored as float32: 9.999999747378752e-06 was written as 1e-05
