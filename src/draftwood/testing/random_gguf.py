"""GGUF files of a given shape and type with random weights and the embedded model's tokenizer, for measurements at sizes of
which no weights are at hand.

    python -m draftwood.testing.random_gguf MODEL.gguf --shape llama-3.2-1b --type Q4_K_M

Blocks hold random valid bytes with scales that keep activations near one, and the types of the tensors are those that
llama.cpp would choose. What such a model says has no meaning; how long it takes does.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.models.loading.gguf.header import TYPES, read_header
from draftwood.models.loading.resolve import packaged_file
from draftwood.testing.gguf_file import NUMBERS, Entry, pad, padded_tokenizer, write_header

POOL = 48 << 20  # random bytes that are made; tensors are copied out of them


@dataclass(frozen=True, slots=True)
class Shape:
    """A model of the Llama family. `vocab_size` 0: that of the tokenizer."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocab_size: int = 0
    tied: bool = True
    theta: float = 500_000.0
    context: int = 8192

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


SHAPES = {
    "tiny": Shape(256, 2, 4, 2, 512),
    "smollm2-135m": Shape(576, 30, 9, 3, 1536, theta=100_000.0),
    "llama-3.2-1b": Shape(2048, 16, 32, 8, 8192),
    "llama-3.2-3b": Shape(3072, 28, 24, 8, 8192),
    "llama-3-8b": Shape(4096, 32, 32, 8, 14336, vocab_size=128_256, tied=False),
}
# As general.file_type numbers them.
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "Q6_K": 18, "BF16": 32}
FLOATS = {"F32": "<f4", "F16": "<f2", "BF16": "<f4"}
WIDE = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}  # instead, where columns are no multiple of 256


def write(path: Path, shape: Shape, kind: str, seed: int = 0) -> int:
    """Write the file; returns its size. Memory holds one pool of random blocks for each type."""
    known = read_header(packaged_file("smollm2")).metadata
    vocab_size = shape.vocab_size or len(known["tokenizer.ggml.tokens"])
    entries = [Entry(name, size, _type(name, size, kind, shape)) for name, size in _tensors(shape, vocab_size)]
    pools, random = dict[tuple[str, int], np.ndarray](), np.random.default_rng(seed)
    with path.open("wb") as file:
        write_header(file, _metadata(shape, kind) | padded_tokenizer(known, vocab_size), entries)
        for entry in entries:
            pad(file)
            if len(entry.shape) == 1:
                file.write(np.ones(entry.shape, "<f4").tobytes())
                continue
            label, columns = entry.label, entry.shape[-1]
            pool = pools.setdefault((label, columns), _pool(label, columns, random))
            left = entry.num_bytes
            while left:
                begin = int(random.integers(len(pool) // 2))
                left -= file.write(pool[begin:].reshape(-1)[:left].data)
        pad(file)
        return file.tell()


def _metadata(shape: Shape, kind: str) -> dict[str, Any]:
    sizes = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.inner,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "rope.dimension_count": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": shape.theta,
    }
    general = {"general.architecture": "llama", "general.name": "random weights", "general.file_type": FILE_TYPES[kind]}
    return general | {f"llama.{key}": value for key, value in sizes.items()}


def _tensors(shape: Shape, vocab_size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    h, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (vocab_size, h)
    for i in range(shape.layers):
        for name, size in {
            "attn_norm": (h,), "attn_q": (q, h), "attn_k": (kv, h), "attn_v": (kv, h), "attn_output": (h, q),
            "ffn_norm": (h,), "ffn_gate": (shape.inner, h), "ffn_up": (shape.inner, h), "ffn_down": (h, shape.inner),
        }.items():  # fmt: skip
            yield f"blk.{i}.{name}.weight", size
    yield "output_norm.weight", (h,)
    if not shape.tied:
        yield "output.weight", (vocab_size, h)


def _type(name: str, size: tuple[int, ...], kind: str, shape: Shape) -> str:
    """The type that llama.cpp gives a tensor in a file of this kind."""
    if len(size) == 1:
        return "F32"
    label = {"Q4_K_M": "Q4_K"}.get(kind, kind)
    if name == ("token_embd.weight" if shape.tied else "output.weight") and kind not in ("Q8_0", *FLOATS):
        label = "Q6_K"  # the head
    elif kind == "Q4_K_M" and ("attn_v" in name or "ffn_down" in name):
        layer, count = int(name.split(".")[1]), shape.layers
        more = layer < count // 8 or layer >= 7 * count // 8 or (layer - count // 8) % 3 == 2
        label = "Q6_K" if more else "Q4_K"
    return WIDE.get(label, label) if size[-1] % TYPES[NUMBERS[label]][1] else label


def _pool(label: str, columns: int, random: np.random.Generator) -> np.ndarray:
    """Random blocks [count, bytes] of weights with mean 0 and standard deviation columns^-1/2."""
    size, std = TYPES[NUMBERS[label]][2], columns**-0.5
    count = max(1, POOL // size)
    blocks = np.frombuffer(random.bytes(count * size), np.uint8).reshape(count, size).copy()

    def scale(at: int, value: float) -> None:
        halves = (value * random.uniform(0.75, 1.25, count)).astype("<f2")
        blocks[:, at : at + 2] = halves[:, None].view(np.uint8)

    if label in FLOATS:
        drawn = (std * random.standard_normal(count)).astype(FLOATS[label])[:, None].view(np.uint8)
        return drawn[:, -size:]  # of a float32 the upper half is a bfloat16
    if label in ("Q4_0", "Q5_0", "Q8_0"):
        scale(0, std / {"Q4_0": 4.6, "Q5_0": 9.2, "Q8_0": 73.9}[label])
    elif label == "Q4_K":
        # The minimum of every block is 7.5 times its scale: byte 4 + i says 6 bits of it, byte 8 + i the low nibble twice.
        scale(0, std / (4.6 * 36.5))
        blocks[:, 2:4] = (7.5 * blocks[:, :2].copy().view("<f2").astype(np.float32)).astype("<f2").view(np.uint8)
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17
    else:
        assert label == "Q6_K", label
        blocks[:, 192:208] = blocks[:, 192:208] % 96 + 32
        scale(208, std / (18.5 * 84.0))
    return blocks


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m draftwood.testing.random_gguf", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    parser.add_argument("--type", choices=FILE_TYPES, default="Q4_K_M")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    size = write(options.file, SHAPES[options.shape], options.type, options.seed)
    print(f"{options.file}: {size / 1e9:.2f} GB, {options.shape}, {options.type}")


if __name__ == "__main__":
    main()
