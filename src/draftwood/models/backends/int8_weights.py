"""The weights of an int8 model: every product packed in blocks, every norm and bias in float32.

From a checkpoint's tensors, or from one flat file that a warm start reads straight into memory.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.backends.large_pages import large_pages
from draftwood.models.backends.quantised_blocks import Packed, pack

INDEX, DATA = "int8.json", "int8.bin"
_ALIGN = 64  # a cache line
T = TypeVar("T")

PRODUCTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
NORMS = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A packed matrix and its bias."""

    weight: Packed
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    products: dict[str, Product]  # by the names of PRODUCTS
    norms: dict[str, Tensor]  # by the names of NORMS; only Qwen3 has the last two


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weights:
    """Everything a decoder needs."""

    embedding: Packed
    head: Packed  # the embedding itself where they are tied
    norm: Tensor
    layers: tuple[LayerWeights, ...]

    @property
    def bytes_per_pass(self) -> int:
        """Bytes that a pass reads if it reads every weight once."""
        products = [p.weight for layer in self.layers for p in layer.products.values()]
        return sum(p.data.numel() for p in [*products, self.head])


def from_tensors(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Int8Weights:
    """Pack a checkpoint's tensors, given under their Hugging Face names."""

    def product(layer: int, names: tuple[str, ...]) -> Product:
        prefix = f"model.layers.{layer}."
        weight = torch.cat([tensors[f"{prefix}{n}.weight"].float() for n in names])
        biases = [tensors[f"{prefix}{n}.bias"].float() for n in names if f"{prefix}{n}.bias" in tensors]
        return Product(pack(weight), torch.cat(biases) if biases else None)

    def norms(layer: int) -> dict[str, Tensor]:
        named = {name: f"model.layers.{layer}.{hf_name}.weight" for name, hf_name in NORMS.items()}
        return {name: tensors[hf_name].float().contiguous() for name, hf_name in named.items() if hf_name in tensors}

    embedding = pack(tensors["model.embed_tokens.weight"])
    return Int8Weights(
        embedding=embedding,
        head=embedding if config.tie_embeddings else pack(tensors["lm_head.weight"]),
        norm=tensors["model.norm.weight"].float().contiguous(),
        layers=tuple(
            LayerWeights({name: product(i, names) for name, names in PRODUCTS.items()}, norms(i))
            for i in range(config.num_layers)
        ),
    )


def save(weights: Int8Weights, folder: Path, note: Mapping[str, Any]) -> None:
    """Two files: an index that includes `note`, and the bytes of all tensors."""
    entries: list[dict[str, Any]] = []
    with (folder / DATA).open("wb") as file:
        for name, packed, plain in _flat(weights):
            file.write(b"\0" * (-file.tell() % _ALIGN))
            tensor = plain if packed is None else packed.data
            assert tensor is not None
            raw = tensor.detach().contiguous().numpy().tobytes()
            shape = None if packed is None else [packed.rows, packed.columns, packed.kind]
            entries.append({"name": name, "at": file.tell(), "bytes": len(raw), "packed": shape})
            file.write(raw)
    (folder / INDEX).write_text(json.dumps({"note": dict(note), "tensors": entries}), "utf-8")


def _flat(weights: Int8Weights) -> Iterator[tuple[str, Packed | None, Tensor | None]]:
    yield "embedding", weights.embedding, None
    if weights.head is not weights.embedding:
        yield "head", weights.head, None
    yield "norm", None, weights.norm
    for i, layer in enumerate(weights.layers):
        for name, product in layer.products.items():
            yield f"{i}.{name}", product.weight, None
            if product.bias is not None:
                yield f"{i}.{name}.bias", None, product.bias
        for name, norm in layer.norms.items():
            yield f"{i}.{name}", None, norm


def load(folder: Path, config: ModelConfig) -> tuple[Int8Weights, dict[str, Any]]:
    """The weights, read into memory of their own, and the note that was saved with them."""
    index = json.loads((folder / INDEX).read_text("utf-8"))
    memory = _read(folder / DATA)
    found: dict[str, Packed | Tensor] = {}
    for entry in index["tensors"]:
        raw = memory[entry["at"] : entry["at"] + entry["bytes"]]
        found[entry["name"]] = raw.view(torch.float32) if entry["packed"] is None else Packed(raw, *entry["packed"])

    def get(name: str, kind: type[T]) -> T:
        item = found.get(name)
        if not isinstance(item, kind):
            raise WeightsError(f"{folder / INDEX} has no {name}\nhint: delete the folder, it will be made again")
        return item

    biased = {"qkv": config.qkv_bias, "out": config.out_bias, "gate_up": config.mlp_bias, "down": config.mlp_bias}
    norms = [name for name in NORMS if config.qk_norm or name not in ("q_norm", "k_norm")]
    layers = tuple(
        LayerWeights(
            {
                n: Product(get(f"{i}.{n}", Packed), get(f"{i}.{n}.bias", Tensor) if biased[n] else None)
                for n in PRODUCTS
            },
            {n: get(f"{i}.{n}", Tensor) for n in norms},
        )
        for i in range(config.num_layers)
    )
    embedding = get("embedding", Packed)
    head = embedding if config.tie_embeddings else get("head", Packed)
    return Int8Weights(embedding, head, get("norm", Tensor), layers), index["note"]


def _read(path: Path) -> Tensor:
    """A file's bytes in memory of their own."""
    memory = large_pages(path.stat().st_size)
    with path.open("rb") as file:
        file.readinto(memory)  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)
