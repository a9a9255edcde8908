"""Passes and weights for tests of the GPU kernels: on a GPU if there is one, else in Triton's interpreter on the CPU."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwood.kernels.gpu.arguments import STORED_WORDS, Heads

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float16  # the interpreter has no products in bfloat16
HEADS = Heads(heads=4, kv_heads=2, head_dim=16, block=16)
BLOCKS_OF_A_SLOT = 6
EPS = 1e-5


def noise(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = DTYPE) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return drawn.to(DEVICE, dtype)


def agree(found: Tensor, right: Tensor, close: float = 0.03) -> None:
    """Equal up to rounding: relative to the size of the numbers, so that a wrong sum is seen."""
    assert found.shape == right.shape
    scale = right.float().abs().max().clamp_min(1e-3)
    error = ((found.float() - right.float()).abs().max() / scale).item()
    assert error < close, f"the greatest difference is {error:.3g} of the greatest number"


def angles(most: int = 256, width: int = HEADS.head_dim) -> Tensor:
    angle = torch.arange(most)[:, None].float() / 10_000.0 ** (torch.arange(0, width, 2) / width)
    return torch.cat([angle.cos(), angle.sin()], dim=-1).to(DEVICE)


@dataclass(frozen=True)
class Line:
    """One sequence of a pass: `done` committed entries, then `known` tokens and nodes below them by their parents."""

    slot: int
    done: int
    known: int
    parents: list[int]  # staged entries
    first: int = 0

    @property
    def count(self) -> int:
        return (self.known if self.first == 0 else 0) + len(self.parents)

    def whole(self) -> list[int]:
        return [*(range(-1, self.known - 1) if self.first == 0 else ()), *self.parents]


@dataclass(frozen=True)
class Case:
    """Arguments of `placement`, and stores of random entries."""

    meta: Tensor
    parents: Tensor
    positions: Tensor
    table: Tensor
    trees: Tensor
    keys: Tensor
    values: Tensor


def random_line(rng: random.Random, slot: int, done: int, known: int, nodes: int) -> Line:
    return Line(slot, done, known, [rng.randrange(known - 1, known + i) for i in range(nodes)])


def case(lines: list[Line], width: int, *, slots: int = 4, empty: int = 0, seed: int = 1, heads: Heads = HEADS) -> Case:
    """`empty`: lines of padding behind them. Blocks of the slots lie in random order; block 0 belongs to none."""
    rng = random.Random(seed)
    order = list(range(1, slots * BLOCKS_OF_A_SLOT + 1))
    rng.shuffle(order)
    table = torch.tensor(order, dtype=torch.int32).view(slots, BLOCKS_OF_A_SLOT)
    rows = [(x.slot, x.done, x.first, x.known, x.count) for x in lines] + [(0, 0, 0, 1, 0)] * empty
    parents, positions = (torch.zeros(len(rows), width, dtype=torch.int64) for _ in range(2))
    for b, x in enumerate(lines):
        above = x.whole()
        parents[b, : x.count] = torch.tensor(above)
        depth: list[int] = []
        for p in above:
            depth.append(0 if p < x.first else depth[p - x.first] + 1)
        positions[b, : x.count] = torch.tensor([x.done + d for d in depth])
    shape = (len(order) + 1, heads.kv_heads, heads.block, heads.head_dim)
    return Case(
        torch.tensor(rows).T.contiguous().to(DEVICE),
        parents.to(DEVICE),
        positions.to(DEVICE),
        table.to(DEVICE),
        torch.zeros(slots, 1024, STORED_WORDS, dtype=torch.int64, device=DEVICE),
        noise(*shape, seed=seed + 1),
        noise(*shape, seed=seed + 2),
    )
