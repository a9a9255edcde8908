"""The shape that a model is expanded to, and the config it then has.

Equal in exact arithmetic, with d and D the old and the new hidden size:

    RMS norm      the mean of squares over zeros is d/D of the old one: gain * sqrt(d/D), epsilon * d/D
    attention     scores are divided by the root of the new head size: queries * sqrt(new / old)
    rotation      pair i of m * n dimensions has the frequency of pair i / m of n: old pairs stand m apart, theta stays
"""

import math
from dataclasses import dataclass, fields, replace

from draftwood.core.config import ModelConfig
from draftwood.errors import OptionError
from draftwood.models.loading.tensor_names import expected

# A hidden dimension that is this number in every token, so that the head can tell what must never be sampled. Its square is
# taken out of the norms' epsilon, and it is a power of two, which every float type holds.
CONSTANT = 2.0**-10
GAIN = 2.0**15  # of that dimension in the final norm; in float16 it is finite
MASK = 2.0**22  # minus this is its weight in masked rows; in blocks of int8 its scale is finite


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int

    def __str__(self) -> str:
        return ",".join(str(getattr(self, field.name)) for field in fields(self))


SHAPES = {
    "llama-3-8b": Shape(32, 4096, 32, 8, 128, 14336, 128256),
    # A pass reads 1.23 billion weights, as of Llama-3.2-1B. That has 16 layers; this one is deeper and narrower.
    "llama-1b": Shape(30, 1280, 20, 5, 64, 8192, 128256),
}


def parse(text: str) -> Shape:
    """A shape by name, or its seven numbers. OptionError if it is neither."""
    if text in SHAPES:
        return SHAPES[text]
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) != 7 or min(sizes) < 1:
        raise OptionError(
            f"shape cannot be {text!r}\n"
            f"hint: {', '.join(SHAPES)}, or layers,hidden,heads,kv heads,head size,MLP,vocabulary, as {SHAPES['llama-1b']}"
        )
    return Shape(*sizes)


def expanded(config: ModelConfig, shape: Shape) -> ModelConfig:
    """The config of the expanded model. OptionError names everything that does not fit."""
    wrong = [*_too_small(config, shape), *_wrong_heads(config, shape)]
    if config.qk_norm:
        wrong.append(
            "norms over heads (Qwen3) share their epsilon with the other norms, so head and hidden size are fixed"
        )
    if shape.vocab_size > config.vocab_size and shape.hidden_size == config.hidden_size:
        wrong.append(f"a larger vocabulary needs one hidden dimension more than {config.hidden_size}")
    if wrong:
        raise OptionError(f"this model does not fit into the shape {shape}:\n  " + "\n  ".join(wrong))
    sizes = {field.name: getattr(shape, field.name) for field in fields(shape)}
    more = {"tie_embeddings": config.tie_embeddings and shape.vocab_size == config.vocab_size}
    found = replace(config, **sizes, **more)
    return replace(found, rms_eps=epsilon(config.rms_eps, config, found, constant(config, found)))


def _too_small(config: ModelConfig, shape: Shape) -> list[str]:
    names = {"num_layers": "layers", "hidden_size": "hidden", "intermediate_size": "MLP", "vocab_size": "vocabulary"}
    return [
        f"{said}: {getattr(shape, name)}, the model has {getattr(config, name)}"
        for name, said in names.items()
        if getattr(shape, name) < getattr(config, name)
    ]


def _wrong_heads(config: ModelConfig, shape: Shape) -> list[str]:
    wrong: list[str] = []
    if shape.head_dim % config.head_dim:
        wrong.append(
            f"head size: {shape.head_dim} is no multiple of {config.head_dim}, so rotations would have other frequencies"
        )
    if shape.num_heads % shape.num_kv_heads:
        return [*wrong, f"{shape.num_heads} heads cannot share {shape.num_kv_heads} key/value heads"]
    needed = config.num_kv_heads * copies(config, shape)
    if needed > shape.num_kv_heads:
        wrong.append(
            f"key/value heads: {shape.num_kv_heads}, the model needs {needed}, as {shape.num_heads // shape.num_kv_heads} "
            f"heads share one and {config.num_heads // config.num_kv_heads} did"
        )
    return wrong


def copies(old: ModelConfig | Shape, new: ModelConfig | Shape) -> int:
    """Key/value heads that stand for one of the old ones, where fewer heads share one than before."""
    return math.ceil(old.num_heads / old.num_kv_heads / (new.num_heads // new.num_kv_heads))


def constant(old: ModelConfig, new: ModelConfig) -> float:
    """What the last hidden dimension always is: 0 where no row of the head is masked."""
    if new.vocab_size == old.vocab_size:
        return 0.0
    most = 2.0 ** math.floor(math.log2(old.rms_eps * old.hidden_size / 2) / 2)
    return min(CONSTANT, most)


def epsilon(eps: float, old: ModelConfig, new: ModelConfig, constant: float) -> float:
    """Of a norm over the new hidden size: what the constant adds to the mean of squares is taken off it."""
    found = (eps * old.hidden_size - constant**2) / new.hidden_size
    if found <= 0:
        raise OptionError(f"norms with an epsilon of {eps:g} leave no room for a constant of {constant:g}")
    return found


def num_parameters(config: ModelConfig) -> int:
    return sum(math.prod(shape) for shape in expected(config).values())
