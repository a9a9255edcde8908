"""The weights of an int8 model: every product packed in blocks, every norm and bias in float32.

They come from a source a few rows at a time, so that they can be written to a file without being held in memory.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.errors import WeightsError
from draftwood.models.backends.quantised_blocks import BLOCK, GROUP, Kind, Packed, join, pack, round_four_bits

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
POST_NORMS = {  # where what is added to the residual is normed too, the name of one norm means another
    "mlp_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}


def norm_names(config: ModelConfig) -> dict[str, str]:
    """Every norm that a layer of this model has, and its Hugging Face name."""
    names = NORMS | (POST_NORMS if config.post_norms else {})
    return {ours: theirs for ours, theirs in names.items() if config.qk_norm or ours not in ("q_norm", "k_norm")}


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A matrix and its bias. The parts are its rows from the first to the last: neighbours differ in their block type."""

    parts: tuple[Packed, ...]
    bias: Tensor | None = None

    @classmethod
    def of(cls, matrices: Sequence[Packed], bias: Tensor | None = None) -> "Product":
        """Matrices one below the other, for example q, k and v, of any block types."""
        return cls(join(matrices), bias)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        return self.parts[0].columns


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    products: dict[str, Product]  # by the names of PRODUCTS
    norms: dict[str, Tensor]  # by the names of norm_names


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weights:
    """Everything a decoder needs."""

    embedding: Packed
    head: Packed  # the embedding itself where they are tied
    norm: Tensor
    layers: tuple[LayerWeights, ...]

    @property
    def matrices(self) -> list[Packed]:
        """Every matrix that a pass reads, in its order."""
        return [*(part for layer in self.layers for p in layer.products.values() for part in p.parts), self.head]

    @property
    def kinds(self) -> frozenset[Kind]:
        """The block types of all matrices."""
        return frozenset(p.kind for p in [self.embedding, *self.matrices])

    @property
    def bytes_per_pass(self) -> int:
        """Bytes that a pass reads if it reads every weight once."""
        return sum(self._bytes_by_kind.values())

    @property
    def block_types(self) -> str:
        """Such as "Q4_K + Q6_K blocks", the one with most bytes first; "" if all are of 8 bits."""
        found = self._bytes_by_kind
        kinds = sorted(found, key=lambda kind: -found[kind])
        return "" if kinds == [Kind.Q8_0] else f"{' + '.join(kind.name for kind in kinds)} blocks"

    @property
    def _bytes_by_kind(self) -> Counter[Kind]:
        """Of all products and the head."""
        found: Counter[Kind] = Counter()
        for part in self.matrices:
            found[part.kind] += part.data.numel()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A matrix as it arrives: slices of one block type, all but the last of whole groups of rows."""

    rows: int
    columns: int
    kind: Kind
    slices: Iterable[Packed]

    def packed(self) -> Packed:
        """All of it in memory."""
        data = [each.data for each in self.slices]
        return Packed(data[0] if len(data) == 1 else torch.cat(data), self.rows, self.columns, self.kind)


class Source(Protocol):
    """A checkpoint's weights under their Hugging Face names."""

    def __contains__(self, name: str) -> bool: ...
    def matrix(self, name: str) -> Rows: ...
    def vector(self, name: str) -> Tensor: ...  # in float32


class TensorSource:
    """Weights that are tensors, rounded to 8 bits unless 4 bits hold them exactly. `four_bits`: rounded to 4 bits, but for
    embedding and head, which say more of every token than any other matrix."""

    def __init__(self, tensors: Mapping[str, Tensor], *, four_bits: bool = False) -> None:
        self.tensors, self.four_bits = tensors, four_bits

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def matrix(self, name: str) -> Rows:
        weight = self.tensors[name]
        rows, columns = weight.shape
        if self.four_bits and ".layers." in name and columns % BLOCK == 0:
            pieces = range(0, rows, step := _step(columns))
            return Rows(rows, columns, Kind.Q4_1, (round_four_bits(weight[i : i + step]) for i in pieces))
        return rounded(rows, columns, lambda first, last: weight[first:last].float())

    def vector(self, name: str) -> Tensor:
        return self.tensors[name].float().contiguous()


def rounded(rows: int, columns: int, floats: Callable[[int, int], Tensor]) -> Rows:
    """A matrix of floats, of which `floats(first, last)` gives some rows. All slices have one block type: in 4 bits only if
    that changes no weight of the matrix."""
    step = _step(columns)
    pieces = [(first, min(first + step, rows)) for first in range(0, rows, step)]
    first = pack(floats(*pieces[0]))
    if first.kind is not Kind.Q8_0:
        exact = [first, *(pack(floats(*each)) for each in pieces[1:])]
        if all(each.kind is first.kind for each in exact):
            return Rows(rows, columns, first.kind, exact)
    later = (pack(floats(*each), Kind.Q8_0) for each in (pieces[1:] if first.kind is Kind.Q8_0 else pieces))
    return Rows(rows, columns, Kind.Q8_0, chain([first], later) if first.kind is Kind.Q8_0 else later)


def _step(columns: int) -> int:
    return max(1, _SLICE // (4 * columns * GROUP)) * GROUP


_SLICE = 1 << 24  # bytes of floats that are rounded at a time
Entry = tuple[str, Rows | Tensor]


def entries(config: ModelConfig, source: Source) -> Iterator[Entry]:
    """Everything a model is made of, by a name of its own, in the order in which a pass reads it. Each must be used before
    the next is asked for."""
    yield "embedding", source.matrix("model.embed_tokens.weight")
    if not config.tie_embeddings:
        yield "head", source.matrix("lm_head.weight")
    yield "norm", source.vector("model.norm.weight") + config.norm_offset
    for i in range(config.num_layers):
        prefix = f"model.layers.{i}."
        for name, hf_names in PRODUCTS.items():
            matrices = [source.matrix(f"{prefix}{n}.weight") for n in hf_names]
            yield from ((part_name(i, name, j), part) for j, part in enumerate(_stacked(matrices)))
            biases = [source.vector(f"{prefix}{n}.bias") for n in hf_names if f"{prefix}{n}.bias" in source]
            if biases:
                yield f"{i}.{name}.bias", torch.cat(biases)
        for name, hf_name in norm_names(config).items():
            if f"{prefix}{hf_name}.weight" in source:
                yield f"{i}.{name}", source.vector(f"{prefix}{hf_name}.weight") + config.norm_offset


def _stacked(matrices: list[Rows]) -> list[Rows]:
    """One below the other in as few parts as possible, as `join` does with whole matrices."""
    found: list[list[Rows]] = []
    for each in matrices:
        last = found[-1][-1] if found else None
        if last is not None and last.kind is each.kind and last.rows % GROUP == 0:
            found[-1].append(each)
        else:
            found.append([each])
    return [
        Rows(sum(x.rows for x in each), each[0].columns, each[0].kind, chain.from_iterable(x.slices for x in each))
        for each in found
    ]


def part_name(layer: int, name: str, index: int) -> str:
    """The name of a part of a product."""
    return f"{layer}.{name}.{index}" if index else f"{layer}.{name}"


def from_tensors(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Int8Weights:
    """Pack a checkpoint's tensors, given under their Hugging Face names."""
    return from_source(config, TensorSource(tensors))


def from_source(config: ModelConfig, source: Source) -> Int8Weights:
    """Pack everything into memory."""
    found = {name: x.packed() if isinstance(x, Rows) else x for name, x in entries(config, source)}
    return assembled(config, found, where="the model")


def assembled(config: ModelConfig, found: Mapping[str, Packed | Tensor], *, where: str) -> Int8Weights:
    """The weights from what `entries` named; WeightsError names what is not among them."""

    def get(name: str, kind: type[T]) -> T:
        item = found.get(name)
        if not isinstance(item, kind):
            raise WeightsError(f"{where} has no {name}\nhint: delete the folder, it will be made again")
        return item

    def product(layer: int, name: str) -> Product:
        parts = [get(part_name(layer, name, 0), Packed)]
        while part_name(layer, name, len(parts)) in found:
            parts.append(get(part_name(layer, name, len(parts)), Packed))
        return Product(tuple(parts), get(f"{layer}.{name}.bias", Tensor) if biased[name] else None)

    biased = {"qkv": config.qkv_bias, "out": config.out_bias, "gate_up": config.mlp_bias, "down": config.mlp_bias}
    norms = list(norm_names(config))
    layers = tuple(
        LayerWeights({n: product(i, n) for n in PRODUCTS}, {n: get(f"{i}.{n}", Tensor) for n in norms})
        for i in range(config.num_layers)
    )
    embedding = get("embedding", Packed)
    head = embedding if config.tie_embeddings else get("head", Packed)
    return Int8Weights(embedding, head, get("norm", Tensor), layers)
