"""ModelConfig and EngineConfig: the sizes of a model and of an engine, fixed when they are made."""

from dataclasses import dataclass
from typing import Literal

from draftwood.errors import ModelError, OptionError

Family = Literal["llama", "qwen2", "qwen3", "mistral"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3", "mistral")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts.

    kind "linear": every frequency is divided by `factor`.
    kind "llama3": low frequencies are divided by `factor`, high ones kept, a smooth ramp between.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder of the Llama, Qwen2, Qwen3 or Mistral family."""

    family: Family
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    max_positions: int = 8192
    tie_embeddings: bool = False
    qkv_bias: bool = False  # Qwen2, and Llama with attention_bias
    out_bias: bool = False  # Llama with attention_bias
    mlp_bias: bool = False  # Llama with mlp_bias
    qk_norm: bool = False  # Qwen3: RMS norm over each head of q and k
    sliding_window: int | None = None  # a token sees its last `sliding_window` positions, itself included
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sizes = "vocab_size hidden_size num_layers num_heads num_kv_heads head_dim intermediate_size"
        for name in sizes.split():
            if getattr(self, name) <= 0:
                raise ModelError(f"model config: {name} must be positive, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(f"model config: {self.num_heads} heads cannot share {self.num_kv_heads} key/value heads")
        if self.head_dim % 2:
            raise ModelError(f"model config: rotary embedding needs an even head_dim, got {self.head_dim}")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much one engine may hold at once, and whether it gives up on slow drafters."""

    max_num_seqs: int = 8  # sequences resident at the same time
    max_model_len: int | None = None  # tokens of one sequence: prompt, output and draft; None = the model's context
    # Cache entries of all sequences together; None = max_num_seqs * max_model_len. With less, requests may be preempted.
    max_cache_tokens: int | None = None
    max_prefill_tokens: int = 512  # prompt tokens in one pass
    max_num_waiting: int = 4096  # requests that may wait before Engine.add refuses; LLM.generate queues any number
    disable_slow_drafts: bool = True  # a drafter far slower than the target is disabled; False where drafts are studied

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_model_len", "max_cache_tokens", "max_prefill_tokens", "max_num_waiting"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
                raise OptionError(f"engine config: {name} must be a positive whole number, got {value!r}")
        if self.disable_slow_drafts not in (True, False):
            raise OptionError(
                f"engine config: disable_slow_drafts must be True or False, got {self.disable_slow_drafts!r}"
            )
