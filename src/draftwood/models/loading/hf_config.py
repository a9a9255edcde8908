"""config.json of a Hugging Face folder <-> ModelConfig.

Reads the old keys (`rope_theta`, `rope_scaling`) and those of transformers 5 (`rope_parameters`). A missing key has the
default of transformers. A key that changes the computation in a way the decoder lacks is refused by name, never ignored.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from draftwood.core.config import FAMILIES, Family, ModelConfig, RopeScaling
from draftwood.errors import ModelError

# transformers' defaults for a file without the key; null means as many as heads.
KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}

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
    bias = read.flag("attention_bias") if family in ("llama", "qwen3") else False
    rope = _rope_parameters(read)
    eos = [token for source in (raw, generation or {}) for token in _tokens(source.get("eos_token_id"), where)]
    return ModelConfig(
        family=family,
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=read.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=read.integer(
            "num_key_value_heads", heads if "num_key_value_heads" in raw else KV_HEADS.get(family, heads)
        ),
        head_dim=read.integer("head_dim", 128 if family == "qwen3" else hidden // max(heads, 1)),
        intermediate_size=read.integer("intermediate_size"),
        rms_eps=read.real("rms_norm_eps", 1e-6),
        rope_theta=rope.real("rope_theta", read.real("rope_theta", 10_000.0)),
        rope_scaling=_rope_scaling(rope),
        max_positions=read.integer("max_position_embeddings", {"llama": 2048, "mistral": 131_072}.get(family, 32_768)),
        tie_embeddings=read.flag("tie_word_embeddings"),
        qkv_bias=family == "qwen2" or bias,
        out_bias=bias,
        mlp_bias=read.flag("mlp_bias") if family == "llama" else False,
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(read) if family == "mistral" else None,
        bos_token_id=next(iter(_tokens(raw.get("bos_token_id"), where)), None),
        eos_token_ids=tuple(dict.fromkeys(eos)),
    )


def unparse(config: ModelConfig) -> dict[str, Any]:
    """A config.json that `parse` and transformers both read back as this config."""
    rope: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_type": "default"}
    if config.rope_scaling is not None:
        rope |= {"rope_type": config.rope_scaling.kind, "factor": config.rope_scaling.factor}
        if config.rope_scaling.kind == "llama3":
            rope["low_freq_factor"] = config.rope_scaling.low_freq_factor
            rope["high_freq_factor"] = config.rope_scaling.high_freq_factor
            rope["original_max_position_embeddings"] = config.rope_scaling.original_max_positions
    raw: dict[str, Any] = {
        "architectures": [
            {"llama": "Llama", "mistral": "Mistral"}.get(config.family, config.family.title()) + "ForCausalLM"
        ],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_eps,
        "rope_parameters": rope,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
    }
    if config.family in ("llama", "qwen3"):
        raw["attention_bias"] = config.qkv_bias
    if config.family == "llama":
        raw["mlp_bias"] = config.mlp_bias
    if config.family == "mistral":
        raw["sliding_window"] = config.sliding_window
    if parse(raw) != config:
        raise ModelError(f"no config.json describes this model: {config}")
    return raw


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

    def flag(self, key: str) -> bool:
        value = self.get(key, False)
        if not isinstance(value, bool):
            raise ModelError(f"{self.where}: {key!r} should be true or false, it is {value!r}")
        return value


def _refuse_unsupported(read: _Fields) -> None:
    act = read.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise read.unsupported(f"hidden_act {act!r} is not supported, only 'silu' is")
    if read.get("quantization_config"):
        method = read.raw["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"{read.where}: weights quantised with {method!r} are not supported\n"
            "hint: use the unquantised model or a GGUF file"
        )
    if read.raw["model_type"] != "mistral" and read.flag("use_sliding_window"):
        raise read.unsupported("use_sliding_window is true, and windows in some of the layers are not supported")
    for place in (read, _rope_parameters(read)):
        if place.real("partial_rotary_factor", 1.0) != 1.0:
            raise place.unsupported(f"partial_rotary_factor {place.raw['partial_rotary_factor']} is not supported")
    odd = set(read.get("layer_types", ())) - {"full_attention"}
    if odd:
        raise read.unsupported(f"layer types {sorted(odd)} are not supported, only 'full_attention' is")


def _rope_parameters(read: _Fields) -> _Fields:
    """The rope settings under either key; the new key wins, as in transformers."""
    for key in ("rope_parameters", "rope_scaling"):
        found = read.get(key)
        if found is not None and not isinstance(found, Mapping):
            raise ModelError(f"{read.where}: {key!r} should be an object, it is {found!r}")
        if found:
            return _Fields(found, f"{read.where}: {key}", read.name)
    return _Fields({}, read.where, read.name)


def _rope_scaling(rope: _Fields) -> RopeScaling | None:
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
    raise rope.unsupported(f"rope type {kind!r} is not supported; known: default, linear, llama3")


def _sliding_window(read: _Fields) -> int | None:
    if "sliding_window" in read.raw and read.raw["sliding_window"] is None:  # null switches it off, missing does not
        return None
    return read.integer("sliding_window", 4096)


def _tokens(value: Any, where: str) -> list[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    for token in values:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ModelError(f"{where}: token id {token!r} is not a number")
    return values
