"""In the batch-invariant mode a token's numbers have the same bits alone, in a prompt, in a tree, in a batch.

On a CPU Triton's interpreter runs the kernels, with matrix instructions as a GPU has them: the bits of a row do not depend
on how many rows there are. (NumPy's own products break that.)
"""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from device_passes import Part, as_pass
from draftwood.core.forward import FINAL, ForwardInput
from draftwood.kernels.gpu import tiles
from draftwood.kernels.gpu.launch import INTERPRETED
from draftwood.kernels.gpu.operations import Operations
from draftwood.runners.cuda import CudaRunner
from draftwood.testing.parts.tiny import CONFIG, tiny_decoder
from gpu_cases import DEVICE, DTYPE

WIDE = replace(CONFIG, hidden_size=64, head_dim=16, num_layers=2, max_positions=512)
COLUMNS, PART = 16, 32  # of a tile, where a GPU takes 64 and 128: texts of a few tokens cross their ends
DONE = 29
pytestmark = [
    pytest.mark.slow,
    *(pytest.mark.filterwarnings(f"ignore:{said}:RuntimeWarning") for said in ("invalid value", "overflow", "All-NaN")),
]


@pytest.fixture(autouse=True)
def matrix_instructions(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Sums of a product in 64 bits: rounded to 32 they do not depend on the shape of the tile."""
    if "tiles_of_a_gpu" not in request.node.name:
        monkeypatch.setattr(tiles, "INVARIANT_COLUMNS", COLUMNS)
        monkeypatch.setattr(tiles, "INVARIANT_PART", PART)
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    def dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        whole = a.data.astype(np.float64) @ b.data.astype(np.float64) + d.data
        return interpreter.TensorHandle(whole.astype(d.data.dtype), d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


class Text:
    """A model whose text is random, and what it computes for it in passes of any kind."""

    def __init__(self, invariant: bool, shape: str = "llama") -> None:
        family: Any = shape
        config = replace(
            WIDE, num_heads=2, num_kv_heads=1, family=family, qk_norm=shape == "qwen3", qkv_bias=shape == "qwen2"
        )
        self.model: Any = tiny_decoder(1, config=config, dtype=DTYPE).to(DEVICE)
        self.operations: Any = Operations(invariant)
        rng = random.Random(1)
        self.ids = [rng.randrange(60) for _ in range(150)]

    def begin(self, done: int, chunk: int) -> CudaRunner:
        """A runner whose slot 1 holds the first `done` tokens, read in chunks."""
        runner = CudaRunner(self.model, operations=self.operations).open(3, 256)
        runner.admit(1, [0, 1])
        for start in range(0, done, chunk):
            ids = self.ids[start : min(start + chunk, done)]
            self.run(runner, Part(1, ids, list(range(-1, len(ids) - 1)), len(ids)))
            runner.commit([1], [list(range(len(ids)))], [ids])
        return runner

    def run(self, runner: CudaRunner, *parts: Part) -> list[torch.Tensor]:
        """Residuals at every tap, then logits, of all tokens."""
        x = as_pass(parts, [runner.length(part.slot) for part in parts])
        columns = (x.ids, x.slots, x.positions, x.entries, x.parents, x.want)
        moved = [column.to(DEVICE) for column in columns]
        found = runner.execute(ForwardInput(*moved, spans=x.spans), taps=frozenset({1, 2, FINAL}))  # type: ignore[misc]
        return [found.features[1], found.features[2], found.features[FINAL], found.logits[found.logits_index]]


def alone(text: Text, ids: list[int], done: int = DONE) -> list[torch.Tensor]:
    """Each token in a pass of its own, behind the committed text."""
    runner = text.begin(done, 64)
    found: list[list[torch.Tensor]] = []
    for token in ids:
        found.append(text.run(runner, Part(1, [token], [-1], 1)))
        runner.commit([1], [[0]], [[token]])
    return [torch.cat(each) for each in zip(*found, strict=True)]


def same_bits(found: list[torch.Tensor], right: list[torch.Tensor], places: list[int]) -> bool:
    return all(torch.equal(ours[places], theirs) for ours, theirs in zip(found, right, strict=True))


def tree_of(path: list[int]) -> tuple[Part, list[int]]:
    """A tree that holds a path among other nodes; the places of the path."""
    ids, parents, places = [path[0]], [-1], [0]
    for depth, token in enumerate(path[1:]):
        for other in range(depth % 3):
            ids.append((token + other + 1) % 60)
            parents.append(places[-1])
        ids.append(token)
        parents.append(places[-1])
        places.append(len(ids) - 1)
    return Part(1, ids, parents, 1), places


@pytest.mark.parametrize("shape", ["llama", pytest.param("qwen3", marks=pytest.mark.long)])
def test_a_path_has_the_same_bits_alone_in_a_chunk_in_a_tree_and_in_a_batch(shape: str) -> None:
    everywhere_the_same(Text(True, shape), DONE)


@pytest.mark.long
def test_that_holds_for_the_tiles_of_a_gpu() -> None:
    everywhere_the_same(Text(True), 124)


def everywhere_the_same(text: Text, done: int) -> None:
    path = text.ids[done : done + 6]
    last = text.ids[done + 6 : done + 8]
    whole = alone(text, [*path, *last], done)
    right = [x[:6] for x in whole]
    chunk = Part(1, path, list(range(-1, 5)), 6)
    assert same_bits(text.run(text.begin(done, 20), chunk), right, list(range(6))), "in a chunk behind other chunks"
    tree, places = tree_of(path)
    assert same_bits(text.run(text.begin(done, done), tree), right, places), "in a tree"
    runner = text.begin(done, 17)
    for slot in (0, 2):
        runner.admit(slot, [5, 6])
    others = Part(0, [3, 4, 5], [-1, 0, 0], 1), Part(2, list(range(40)), list(range(-1, 39)), 40)
    found = text.run(runner, others[0], tree, others[1])
    assert same_bits(found, right, [3 + place for place in places]), "beside other texts"
    runner.commit([0, 1, 2], [[0], places, [0]], [[3], path, [0]])
    after = text.run(runner, Part(1, last, [-1, 0], 2))
    assert same_bits(after, [x[6:] for x in whole], [0, 1]), "behind a path that was committed out of a tree"


def differs(text: Text, done: int = DONE) -> bool:
    path = text.ids[done : done + 6]
    tree, places = tree_of(path)
    return not same_bits(text.run(text.begin(done, done), tree), alone(text, path, done), places)


def test_the_fast_mode_differs_in_some_bit() -> None:
    """The twin."""
    assert differs(Text(False), 70)


def test_tiles_that_follow_the_size_of_a_pass_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: wide passes read other tiles of columns."""
    from draftwood.kernels.gpu import operations

    def by_width(width: int, group: int) -> tiles.AttentionTiles:
        right = tiles.invariant_attention_tiles(width, group)
        return right if width == 1 else replace(right, columns=32)

    monkeypatch.setattr(operations, "invariant_attention_tiles", by_width)
    assert differs(Text(True))


@pytest.mark.long
def test_columns_of_a_product_that_are_split_by_the_size_of_a_pass_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault."""
    before = Operations._chosen

    def by_rows(self: Operations, kind: str, weight: torch.Tensor, m: int, *rest: Any) -> Any:
        found = before(self, kind, weight, m, *rest)
        return replace(found, bk=16, split=2) if kind == "added" and m == 16 else replace(found, split=1)

    monkeypatch.setattr(Operations, "_chosen", by_rows)
    assert differs(Text(True))
