"""Compile what the passes of a model shape would launch, for a GPU of compute capability 9 that need not be here.

Run as a script, without Triton's interpreter: prints one line for each compiled kernel. Tensors are on the device "meta", so
that no weight takes memory.
"""

import sys
from typing import Any

import torch
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from draftwood.kernels.gpu.arguments import STORED_WORDS, Heads
from draftwood.kernels.gpu.operations import Operations

POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
# heads, key-value heads, head dim, hidden, units, vocabulary, norm of heads
SHAPES = {
    "8b": (32, 8, 128, 4096, 14336, 128256, False),
    "135m": (9, 3, 64, 576, 1536, 49152, False),
    "qwen3": (16, 8, 128, 1024, 3072, 151936, True),
    "qwen2": (14, 2, 64, 896, 4864, 151936, False),
}
PASSES = ((1, 1, 512, 1), (1, 32, 512, 1), (1, 64, 4096, 2), (32, 4, 4096, 1))  # lines, width, context, words


class Compiler:
    """Takes the place of a launch."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        names = [p.name for p in kernel.params]
        given = dict(zip(names, args, strict=False)) | {k: v for k, v in named.items() if k in names}
        options = {k: v for k, v in named.items() if k not in names}
        signature: dict[str, str] = {}
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        for i, p in enumerate(kernel.params):
            value = given[p.name]
            if p.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                signature[p.name], constants[i,] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[p.name], attributes[i,] = POINTERS[value.dtype], [["tt.divisibility", 16]]
            else:
                signature[p.name] = "i32" if isinstance(value, int) else "fp32"
        key = repr((kernel.__name__, signature, constants, options))
        if key in self.seen:
            return
        self.seen.add(key)
        found = compile_kernel(
            ASTSource(kernel, signature, constants, attributes), target=GPUTarget("cuda", 90, 32), options=options
        )
        print(kernel.__name__, found.metadata.shared, "griddepcontrol" in found.asm["ptx"], flush=True)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def launch(ops: Operations, shape: str, lines: int, width: int, context: int, words: int) -> None:
    num_heads, kv, hd, hidden, units, vocab, norm = SHAPES[shape]
    heads, rows = Heads(num_heads, kv, hd, 16), lines * width
    ids, numbers = empty(lines, width, dtype=torch.int64), empty(5, lines, dtype=torch.int64)
    table, trees = empty(64, 512, dtype=torch.int32), empty(64, 1024, STORED_WORDS, dtype=torch.int64)
    at = ops.placement(numbers, ids, ids, table, trees, room=8192, words=words, most_position=8191, heads=heads)
    qkv = empty((num_heads + 2 * kv) * hd, hidden)
    gains = (empty(hd), empty(hd)) if norm else None
    bias = empty(qkv.shape[0]) if shape == "qwen2" else None
    angles, store = empty(8192, hd, dtype=torch.float32), empty(512, kv, 16, hd)
    x, squares = ops.entered(ids.flatten(), empty(vocab, hidden), ops.bucket(rows), False)
    if ops.few(rows):
        for _ in range(2):
            q = ops.rotated(x, squares, qkv, bias, gains, 1e-5, angles, at, store, store, heads)
            mixed = ops.attended(q, store, store, table, at, heads, context)
            x, squares = ops.added(mixed, empty(hidden, num_heads * hd), x)
            x, squares = ops.added(ops.gated(x, squares, empty(2 * units, hidden), 1e-5), empty(hidden, units), x)
        ops.entered(empty(rows, hidden), empty(vocab, hidden), ops.bucket(rows), True)
        ops.scored(ops.normed(x, empty(hidden), 1e-5), empty(vocab, hidden))
    else:
        product = empty(x.shape[0], qkv.shape[0])
        ops.normed(x, None, 1e-5)
        q = ops.turned(product, bias, gains, 1e-5, angles, at, store, store, heads)
        ops.attended(q, store, store, table, at, heads, context)
        ops.added_norm(x, x, 1e-5)
        ops.gate(empty(x.shape[0], 2 * units))
    ops.moved(empty(8, 512, kv, 16, hd), numbers[0], numbers[0], empty(2, dtype=torch.int64), 5)


if __name__ == "__main__":
    compiler = Compiler()
    JITFunction.run = lambda kernel, *args, **named: compiler(kernel, *args, **named)  # type: ignore[method-assign]
    for each in sys.argv[1:]:
        name, _, mode = each.partition(":")
        for size in PASSES if mode != "invariant" else PASSES[1:2]:
            launch(Operations(invariant=mode == "invariant"), name, *size)
