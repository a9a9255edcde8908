"""A matrix or a vector in its new axes. Weights that cannot be read get random numbers of the size of the others."""

import hashlib
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.testing.expand.axes import ANY, ZERO, Axis

PART = 1 << 24  # numbers drawn at a time


@dataclass(frozen=True, slots=True)
class Filling:
    """The type of the numbers, and whether weights without an effect are random (from a seed) or zero."""

    dtype: torch.dtype
    noise: bool = True
    seed: int = 0

    def matrix(
        self,
        name: str,
        weight: Float[Tensor, "out in"],
        rows: Axis,
        columns: Axis,
        scale: Float[Tensor, "R"] | None = None,
    ) -> Float[Tensor, "R C"]:
        """`scale`: of each new row. `name` keys the random numbers, which are the same in every type."""
        out = torch.zeros(len(rows), len(columns), dtype=self.dtype)
        at, beside = (rows >= 0).nonzero()[:, 0], (columns >= 0).nonzero()[:, 0]
        if len(at) and len(beside):
            kept = weight[rows[at]][:, columns[beside]]
            out[at[:, None], beside] = (kept if scale is None else kept.double() * scale[at, None]).to(self.dtype)
        if self.noise:
            self._fill(out, rows == ANY, columns == ZERO, self._generator(name), float(weight.float().std()))
        return out

    def _fill(self, out: Tensor, rows: Tensor, columns: Tensor, generator: torch.Generator, size: float) -> None:
        step = max(PART // out.shape[1], 1)
        for start in range(0, len(out), step):
            part = out[start : start + step]
            free = rows[start : start + step, None] | columns
            drawn = torch.randn(part.shape, generator=generator).mul_(size)
            part.copy_(torch.where(free, drawn.to(self.dtype), part))

    def noise_like(self, name: str, shape: tuple[int, int], weight: Tensor) -> Float[Tensor, "R C"]:
        """Random numbers of the size of these weights; zeros without noise."""
        if not self.noise:
            return torch.zeros(shape, dtype=self.dtype)
        drawn = torch.randn(shape, generator=self._generator(name)).mul_(float(weight.float().std()))
        return drawn.to(self.dtype)

    def gain(self, weight: Float[Tensor, "d"], columns: Axis, of_any: float = 0.0) -> Float[Tensor, "D"]:
        """Of a norm over a wider vector; `of_any`: where it is ANY."""
        scaled = weight.double() * math.sqrt(len(weight) / len(columns))
        out = torch.full((len(columns),), float(scaled.mean()) if self.noise else 0.0, dtype=torch.float64)
        out[columns >= 0] = scaled[columns[columns >= 0]]
        out[columns == ANY] = of_any
        return out.to(self.dtype)

    def bias(
        self, bias: Float[Tensor, "out"], rows: Axis, scale: Float[Tensor, "R"] | None = None
    ) -> Float[Tensor, "R"]:
        """Zero wherever the old model has none."""
        out = torch.zeros(len(rows), dtype=torch.float64)
        out[rows >= 0] = bias.double()[rows[rows >= 0]]
        return (out if scale is None else out * scale).to(self.dtype)

    def _generator(self, name: str) -> torch.Generator:
        key = hashlib.sha256(f"{self.seed} {name}".encode()).digest()[:7]
        return torch.Generator().manual_seed(int.from_bytes(key))
