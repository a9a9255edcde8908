"""An expanded model as one GGUF file, for engines that read such files: the same weights in blocks of a type."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import OptionError
from draftwood.models.loading.gguf.header import read_header
from draftwood.models.loading.gguf.weights import IN_LAYER, WHOLE
from draftwood.models.loading.tensor_names import EMBEDDING, HEAD, expected
from draftwood.testing.gguf_file import NUMBERS, Entry, pad, padded_tokenizer, write_header

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_1": 3}  # as general.file_type numbers them
ENDS = (EMBEDDING, HEAD)  # in 8 bits always: masked rows of the head have weights that scales of 4 bits cannot hold
SLICE = 1 << 24  # numbers that are quantised at a time


def check(source: Path | None, config: ModelConfig, label: str) -> Mapping[str, Any]:
    """The metadata of the old model's file. OptionError if the new model, of this config, cannot be written as GGUF."""
    if label not in FILE_TYPES:
        raise OptionError(f"gguf cannot be {label!r}\nhint: {', '.join(FILE_TYPES)}")
    if source is None:
        raise OptionError("a GGUF file takes its tokenizer from a GGUF file\nhint: --model FILE.gguf, or smollm2")
    if config.family != "llama" or config.rope_scaling is not None:
        raise OptionError("only Llama models without rope scaling can be written as GGUF\nhint: leave out --gguf")
    wrong = [name for name, shape in expected(config).items() if len(shape) > 1 and shape[-1] % 32]
    if wrong:
        raise OptionError(f"blocks have 32 columns, which {wrong[0]} does not divide into\nhint: multiples of 32")
    return read_header(source).metadata


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    config: ModelConfig,
    parts: Iterator[dict[str, Tensor]],
    label: str,
    tell: Callable[[int], None],
) -> int:
    """`parts` make the tensors in order, `metadata` is that of the old model's file. Returns the file's size."""
    shapes = expected(config)
    entries = [Entry(_gguf_name(name), shape, _label(name, shape, label)) for name, shape in shapes.items()]
    left = iter(zip(shapes, entries, strict=True))
    with path.open("wb") as file:
        write_header(file, _metadata(config, label) | padded_tokenizer(metadata, config.vocab_size), entries)
        for part in parts:
            for _ in part:
                name, entry = next(left)
                pad(file)
                _write(file.write, part[name], entry.label, _heads(name, config))
            tell(file.tell())
        pad(file)
        return file.tell()


def _gguf_name(name: str) -> str:
    whole = {theirs: ours for ours, theirs in WHOLE.items()}
    if name in whole:
        return whole[name]
    _, _, layer, *middle, kind = name.split(".")
    inner = {theirs: ours for ours, theirs in IN_LAYER.items()}
    return f"blk.{layer}.{inner['.'.join(middle)]}.{kind}"


def _label(name: str, shape: tuple[int, ...], label: str) -> str:
    return "F32" if len(shape) == 1 else "Q8_0" if name in ENDS else label


def _heads(name: str, config: ModelConfig) -> int:
    """Heads whose rows are stored in pairs; 0: rows are stored in order."""
    return {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2], 0)


def _write(write: Callable[[Any], object], weight: Tensor, label: str, heads: int) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    if heads:  # halves of a head become neighbours, which llama.cpp rotates
        weight = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    if label == "F32":
        write(weight.to(torch.float32).contiguous().numpy().tobytes())
        return
    step = max(SLICE // weight.shape[1], 1)
    for first in range(0, len(weight), step):
        rows = weight[first : first + step].to(torch.float32).contiguous().numpy()
        write(np.ascontiguousarray(quantize(rows, GGMLQuantizationType(NUMBERS[label]))).data)


def _metadata(config: ModelConfig, label: str) -> dict[str, Any]:
    sizes: dict[str, int | float] = {
        "vocab_size": config.vocab_size,
        "block_count": config.num_layers,
        "context_length": config.max_positions,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_eps),
        "rope.freq_base": float(config.rope_theta),
    }
    general = {"general.architecture": "llama", "general.name": "expanded", "general.file_type": FILE_TYPES[label]}
    return general | {f"llama.{key}": value for key, value in sizes.items()}
