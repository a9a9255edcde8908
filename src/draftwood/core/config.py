"""ModelConfig and EngineConfig: the sizes of a model and of an engine, fixed when they are made."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from draftwood.errors import ModelError, OptionError

Family = Literal["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts.

    kind "linear": every frequency is divided by `factor`.
    kind "llama3": low frequencies are divided by `factor`, high ones kept, a smooth ramp between.
    kind "yarn": the same between two numbers of rotations, and cosines and sines are multiplied by `attention_factor`.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    # of yarn only, and not part of repr, from which fingerprints of older models were made
    beta_fast: float = field(default=32.0, repr=False)
    beta_slow: float = field(default=1.0, repr=False)
    attention_factor: float = field(default=1.0, repr=False)
    truncate: bool = field(default=True, repr=False)  # the ends of the ramp to whole pairs


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder of the Llama, Qwen2, Qwen3, Mistral, Gemma-2 or Gemma-3 family."""

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
    # What came later; a fingerprint names only those that differ from these defaults.
    full_layers: tuple[int, ...] = ()  # layers without the sliding window
    local_rope_theta: float | None = None  # rope base of the layers with one, unscaled; None: the same as of all
    activation: Literal["silu", "gelu_tanh"] = "silu"
    norm_offset: float = 0.0  # added to every norm's weights: Gemma stores them as differences from one
    post_norms: bool = False  # what attention and MLP add to the residual is normed too
    embedding_scale: float = 1.0
    query_scale: float | None = None  # of scores; None: head_dim^-1/2
    attention_cap: float | None = None  # scores s become cap * tanh(s / cap)
    logit_cap: float | None = None

    def window(self, layer: int) -> int | None:
        """The sliding window of a layer."""
        return None if layer in self.full_layers else self.sliding_window

    def is_local(self, layer: int) -> bool:
        """Whether a layer turns its heads by `local_rope_theta`."""
        return self.local_rope_theta is not None and self.window(layer) is not None

    @property
    def uniform(self) -> bool:
        """Whether all layers have one window and one rope, and nothing but the residual between their sub-layers."""
        return not (self.full_layers or self.post_norms or self.attention_cap or self.query_scale)

    def plain_layer(self, **changes: Any) -> "ModelConfig":
        """A config of these sizes for a drafter's own layers, which have none of what came later."""
        later = {
            "full_layers": (), "local_rope_theta": None, "activation": "silu", "norm_offset": 0.0, "post_norms": False,
            "embedding_scale": 1.0, "query_scale": None, "attention_cap": None, "logit_cap": None,
        }  # fmt: skip
        yarn = self.rope_scaling is not None and self.rope_scaling.kind == "yarn"
        scaling = None if yarn else self.rope_scaling
        return replace(self, **(later | {"rope_scaling": scaling} | changes))

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
    # Cache entries of preempted requests that may wait as copies outside of the cache; None = max_cache_tokens, 0 = none.
    # Without a copy a preempted text is read again.
    max_saved_tokens: int | None = None
    max_prefill_tokens: int = 512  # prompt tokens in one pass
    max_num_waiting: int = 4096  # requests that may wait before Engine.add refuses; LLM.generate queues any number
    # A sequence's text has the same bits whatever runs beside it, refused where the model's backend cannot promise that.
    batch_invariant: bool = False
    disable_slow_drafts: bool = True  # a drafter far slower than the target is disabled; False where drafts are studied

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_model_len", "max_cache_tokens", "max_prefill_tokens", "max_num_waiting"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
                raise OptionError(f"engine config: {name} must be a positive whole number, got {value!r}")
        saved: Any = self.max_saved_tokens
        if saved is not None and (not isinstance(saved, int) or isinstance(saved, bool) or saved < 0):
            raise OptionError(f"engine config: max_saved_tokens must be a whole number, got {saved!r}")
        for name in ("batch_invariant", "disable_slow_drafts"):
            if getattr(self, name) not in (True, False):
                raise OptionError(f"engine config: {name} must be True or False, got {getattr(self, name)!r}")
