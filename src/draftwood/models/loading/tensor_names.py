"""The tensors that a model must have, by Hugging Face name and shape. None may be missing and none left over."""

from collections.abc import Mapping

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

# Buffers that old checkpoints carry and that hold nothing learned.
BUFFERS = ("rotary_emb.inv_freq",)


def is_buffer(name: str) -> bool:
    """Whether a tensor of this name may be ignored."""
    return name.endswith(BUFFERS)


def expected(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a model; a tied head is not among them."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (hidden,)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{at}.self_attn.{name}_proj.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{at}.self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{at}.self_attn.o_proj.weight"] = (hidden, q)
        if config.out_bias:
            shapes[f"{at}.self_attn.o_proj.bias"] = (hidden,)
        if config.qk_norm:
            shapes[f"{at}.self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[f"{at}.self_attn.k_norm.weight"] = (config.head_dim,)
        shapes[f"{at}.post_attention_layernorm.weight"] = (hidden,)
        if config.post_norms:
            shapes[f"{at}.pre_feedforward_layernorm.weight"] = (hidden,)
            shapes[f"{at}.post_feedforward_layernorm.weight"] = (hidden,)
        for name, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            shapes[f"{at}.mlp.{name}_proj.weight"] = shape
            if config.mlp_bias:
                shapes[f"{at}.mlp.{name}_proj.bias"] = shape[:1]
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def check_names(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], *, where: str = "weights") -> None:
    """WeightsError naming every tensor that is missing, left over or of the wrong shape."""
    if config.num_layers > len(shapes):  # checked first: the number comes from a file, and `expected` is as long
        raise WeightsError(f"{where}: {len(shapes)} tensors are too few for {config.num_layers} layers")
    wanted = expected(config)
    missing = [name for name in wanted if name not in shapes]
    if config.tie_embeddings and HEAD in shapes:  # allowed; the reader checks that it equals the embedding
        wanted[HEAD] = wanted[EMBEDDING]
    extra = [name for name in shapes if name not in wanted and not is_buffer(name)]
    wrong = [
        f"{name} is {tuple(shapes[name])}, expected {shape}"
        for name, shape in wanted.items()
        if name in shapes and tuple(shapes[name]) != shape
    ]
    problems = [
        f"{len(found)} {label}: {_few(found)}"
        for label, found in (("missing", missing), ("not expected", extra), ("of the wrong shape", wrong))
        if found
    ]
    if problems:
        raise WeightsError(
            f"{where}: the tensors do not fit a {config.family} model of {config.num_layers} layers\n  "
            + "\n  ".join(problems)
            + "\nhint: config and weights belong to different models, or the download is incomplete"
        )


def _few(found: list[str], limit: int = 8) -> str:
    rest = f" and {len(found) - limit} more" if len(found) > limit else ""
    return ", ".join(found[:limit]) + rest
