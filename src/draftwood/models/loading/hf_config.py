"""config.json of a Hugging Face folder <-> ModelConfig.

Reads the old keys (`rope_theta`, `rope_scaling`) and those of transformers 5 (`rope_parameters`). A missing key has the
default of transformers. A key that changes the computation in a way the decoder lacks is refused by name, never ignored.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from draftwood.core.config import FAMILIES, Family, ModelConfig, RopeScaling
from draftwood.errors import ModelError
from draftwood.models.rope import yarn_attention_factor

# transformers' defaults for a file without the key; null means as many as heads.
KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}

GEMMA = ("gemma2", "gemma3_text")
FAR = ("mistral", "gemma3_text")  # with a long context by default
LAYER_TYPES = ("full_attention", "sliding_attention")

_REQUIRED = object()


def parse(
    raw: Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    *,
    where: str = "config.json",
    name: str = "NAME",
) -> ModelConfig:
    """The ModelConfig of a config.json, with the end tokens of generation_config.json added.

    `where` and `name` are for errors: the file, and what the user calls the model.
    """
    read = _Fields(raw, where, name)
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise read.unsupported(f"model type {family!r} has no decoder here; known: {', '.join(get_args(Family))}")
    _refuse_unsupported(read)
    heads = read.integer("num_attention_heads")
    hidden = read.integer("hidden_size")
    gemma = family in GEMMA
    bias = read.flag("attention_bias") if gemma or family in ("llama", "qwen3") else False
    rope, local = _ropes(read)
    layers = read.integer("num_hidden_layers")
    window, full_layers = _windows(read, layers)
    head_dim = read.integer(
        "head_dim", {"qwen3": 128, **dict.fromkeys(GEMMA, 256)}.get(family, hidden // max(heads, 1))
    )
    max_positions = read.integer(
        "max_position_embeddings", {"llama": 2048, "gemma2": 8192}.get(family, 131_072 if family in FAR else 32_768)
    )
    eos = [token for source in (raw, generation or {}) for token in _tokens(source.get("eos_token_id"), where)]
    return ModelConfig(
        family=family,
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=read.integer(
            "num_key_value_heads", heads if "num_key_value_heads" in raw else KV_HEADS.get(family, heads)
        ),
        head_dim=head_dim,
        intermediate_size=read.integer("intermediate_size"),
        rms_eps=read.real("rms_norm_eps", 1e-6),
        rope_theta=rope.real("rope_theta", read.real("rope_theta", 1e6 if family == "gemma3_text" else 10_000.0)),
        rope_scaling=_rope_scaling(rope, max_positions),
        max_positions=max_positions,
        tie_embeddings=read.flag("tie_word_embeddings", gemma),
        qkv_bias=family == "qwen2" or bias,
        out_bias=bias,
        mlp_bias=read.flag("mlp_bias") if family == "llama" else False,
        qk_norm=family in ("qwen3", "gemma3_text"),
        sliding_window=window,
        bos_token_id=next(iter(_tokens(raw.get("bos_token_id"), where)), None),
        eos_token_ids=tuple(dict.fromkeys(eos)),
        full_layers=full_layers,
        **(_gemma(read, hidden, head_dim, local) if gemma else {}),
    )


def _gemma(read: "_Fields", hidden: int, head_dim: int, local: "_Fields | None") -> dict[str, Any]:
    """What only this family has. The caps and the local rope have defaults that differ between its generations."""
    second = read.raw["model_type"] == "gemma2"
    caps = {"attention_cap": ("attn_logit_softcapping", 50.0), "logit_cap": ("final_logit_softcapping", 30.0)}
    found: dict[str, Any] = {
        ours: None if read.raw.get(key, default if second else None) is None else read.real(key, default)
        for ours, (key, default) in caps.items()
    }
    if local is not None:
        found["local_rope_theta"] = local.real("rope_theta", read.real("rope_local_base_freq", 10_000.0))
    scalar = read.real("query_pre_attn_scalar", 256)
    return found | gemma_arithmetic(hidden, None if scalar == head_dim else scalar)


def gemma_arithmetic(hidden: int, query_scalar: float | None) -> dict[str, Any]:
    """What all models of the family share. `query_scalar`: what scores are divided by the root of; None: head_dim."""
    return {
        "activation": "gelu_tanh",
        "norm_offset": 1.0,
        "post_norms": True,
        "embedding_scale": hidden**0.5,
        "query_scale": None if query_scalar is None else query_scalar**-0.5,
    }


def unparse(config: ModelConfig) -> dict[str, Any]:
    """A config.json that `parse` and transformers both read back as this config."""
    raw: dict[str, Any] = {
        "architectures": [config.family.removesuffix("_text").title() + "ForCausalLM"],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "rms_norm_eps": config.rms_eps,
        "rope_parameters": _rope_of(config),
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
    }
    if config.family in GEMMA:
        scalar = config.head_dim if config.query_scale is None else config.query_scale**-2
        raw |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-6 else scalar,
            "attn_logit_softcapping": config.attention_cap,
            "final_logit_softcapping": config.logit_cap,
        }
    else:
        raw["hidden_act"] = "silu"
    if config.sliding_window is not None and config.family != "mistral":
        types = [LAYER_TYPES[config.window(i) is not None] for i in range(config.num_layers)]
        raw |= {"layer_types": types, "sliding_window": config.sliding_window}
        if config.family not in GEMMA:
            raw |= {"use_sliding_window": True, "max_window_layers": 0}
    if config.family in (*GEMMA, "llama", "qwen3"):
        raw["attention_bias"] = config.qkv_bias
    if config.family == "llama":
        raw["mlp_bias"] = config.mlp_bias
    if config.family == "mistral":
        raw["sliding_window"] = config.sliding_window
    if parse(raw) != config:
        raise ModelError(f"no config.json describes this model: {config}")
    return raw


def _rope_of(config: ModelConfig) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_type": "default"}
    scaling = config.rope_scaling
    if scaling is not None:
        rope |= {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind != "linear":
            rope["original_max_position_embeddings"] = scaling.original_max_positions
        if scaling.kind == "llama3":
            rope |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
        if scaling.kind == "yarn":
            rope |= {
                name: getattr(scaling, name) for name in ("beta_fast", "beta_slow", "attention_factor", "truncate")
            }
    if config.family != "gemma3_text":
        return rope
    local = {"rope_theta": config.local_rope_theta, "rope_type": "default"}
    return {"full_attention": rope, "sliding_attention": local}


class _Fields:
    """Typed values of one JSON object; null means missing, as in transformers."""

    def __init__(self, raw: Mapping[str, Any], where: str, name: str) -> None:
        self.raw, self.where, self.name = raw, where, name

    def unsupported(self, what: str) -> ModelError:
        """The error for a model that our decoder cannot run as trained; transformers may."""
        return ModelError(f"{self.where}: {what}\nhint: load it as hf:{self.name}, which runs it through transformers")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.raw.get(key)
        if value is None:
            value = default
        if value is _REQUIRED:
            raise ModelError(f"{self.where}: {key!r} is missing")
        return value

    def integer(self, key: str, default: Any = _REQUIRED) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.where}: {key!r} should be an integer, it is {value!r}")
        return value

    def real(self, key: str, default: Any = _REQUIRED) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise ModelError(f"{self.where}: {key!r} should be a positive number, it is {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {key!r} should be true or false, it is {value!r}")
        return value


def _refuse_unsupported(read: _Fields) -> None:
    if read.raw["model_type"] in GEMMA:
        act = read.get("hidden_activation", "gelu_pytorch_tanh")
        if act != "gelu_pytorch_tanh":
            raise read.unsupported(f"hidden_activation {act!r} is not supported, only 'gelu_pytorch_tanh' is")
        if read.flag("use_bidirectional_attention"):
            raise read.unsupported("use_bidirectional_attention is true, and only causal attention is supported")
    else:
        act = read.get("hidden_act", "silu")
        if act not in ("silu", "swish"):
            raise read.unsupported(f"hidden_act {act!r} is not supported, only 'silu' is")
    if read.get("quantization_config"):
        method = read.raw["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"{read.where}: weights quantised with {method!r} are not supported\n"
            "hint: use the unquantised model or a GGUF file"
        )
    for place in (read, *_ropes(read)):
        if place is not None and place.real("partial_rotary_factor", 1.0) != 1.0:
            raise place.unsupported(f"partial_rotary_factor {place.raw['partial_rotary_factor']} is not supported")
    types = read.get("layer_types", ())
    odd = set(types) - set(LAYER_TYPES)
    if odd:
        raise read.unsupported(f"layer types {sorted(odd)} are not supported, only {' and '.join(LAYER_TYPES)} are")
    if types and len(types) != read.integer("num_hidden_layers"):
        raise ModelError(f"{read.where}: {len(types)} layer_types for {read.integer('num_hidden_layers')} layers")


def _rope_parameters(read: _Fields) -> _Fields:
    """The rope settings under either key; the new key wins, as in transformers."""
    for key in ("rope_parameters", "rope_scaling"):
        found = read.get(key)
        if found is not None and not isinstance(found, Mapping):
            raise ModelError(f"{read.where}: {key!r} should be an object, it is {found!r}")
        if found:
            return _Fields(found, f"{read.where}: {key}", read.name)
    return _Fields({}, read.where, read.name)


def _ropes(read: _Fields) -> tuple[_Fields, _Fields | None]:
    """The rope of all layers, and that of layers with a window where it differs."""
    rope = _rope_parameters(read)
    if read.raw["model_type"] != "gemma3_text":
        return rope, None
    parts = [rope.get(kind, {}) for kind in LAYER_TYPES]
    if not any(
        isinstance(value, Mapping) for value in rope.raw.values()
    ):  # older files: scaling of the full layers alone
        return rope, _Fields({}, rope.where, rope.name)
    full, local = (
        _Fields(part, f"{rope.where}: {kind}", rope.name) for part, kind in zip(parts, LAYER_TYPES, strict=True)
    )
    if local.get("rope_type", "default") != "default":
        raise local.unsupported(f"rope type {local.get('rope_type')!r} in layers with a window is not supported")
    return full, local


def _rope_scaling(rope: _Fields, max_positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if any(isinstance(value, Mapping) for value in rope.raw.values()):
        raise rope.unsupported(f"one rope per layer type is not supported: {', '.join(rope.raw)}")
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.real("factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            rope.real("factor"),
            rope.real("low_freq_factor"),
            rope.real("high_freq_factor"),
            rope.integer("original_max_position_embeddings"),
        )
    if kind == "yarn":
        original = rope.integer("original_max_position_embeddings", max_positions)
        factor = rope.real("factor", max_positions / original)
        scales = [rope.real(key, 0.0) if rope.get(key) else 0.0 for key in ("mscale", "mscale_all_dim")]
        usual = yarn_attention_factor(factor)
        if all(scales):
            usual = yarn_attention_factor(factor, scales[0]) / yarn_attention_factor(factor, scales[1])
        return RopeScaling(
            "yarn",
            factor,
            original_max_positions=original,
            beta_fast=rope.real("beta_fast", 32.0),
            beta_slow=rope.real("beta_slow", 1.0),
            attention_factor=rope.real("attention_factor", usual),
            truncate=rope.flag("truncate", True),
        )
    raise rope.unsupported(f"rope type {kind!r} is not supported; known: default, linear, llama3, yarn")


def _windows(read: _Fields, layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The sliding window, and the layers without it."""
    family = read.raw["model_type"]
    null = (
        "sliding_window" in read.raw and read.raw["sliding_window"] is None
    )  # switches it off; a missing key does not
    off = family in ("qwen2", "qwen3") and not read.flag("use_sliding_window")
    if null or off or family == "llama":
        return None, ()
    types = read.get("layer_types")
    if types is None and family in GEMMA:
        step = 2 if family == "gemma2" else read.integer("sliding_window_pattern", 6)
        types = [LAYER_TYPES[(i + 1) % step != 0] for i in range(layers)]
    elif types is None and family != "mistral":
        first = read.integer("max_window_layers", 28)
        types = [LAYER_TYPES[i >= first] for i in range(layers)]
    full = tuple(i for i, kind in enumerate(types or ()) if kind == LAYER_TYPES[0])
    if len(full) == layers:
        return None, ()
    return read.integer("sliding_window", 4096), full


def _tokens(value: Any, where: str) -> list[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    for token in values:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ModelError(f"{where}: token id {token!r} is not a number")
    return values
