"""New axes: of every place, the old place that it holds, or why it holds none.

    residual, 4 in 8                 0 1 2 3 . . . .
    values of a head of 4 in 8       0 1 2 3 . . . .
    its queries and keys             0 . 1 . 2 . 3 .     rotated in pairs: (0, 2) and (1, 3)

A place without an old one is ZERO, always exactly zero, or ANY, any number that nothing may read. A weight may be any number
if its input is ZERO or its output ANY; it must be zero if its input is ANY and its output is not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.config import ModelConfig
from draftwood.testing.expand.shape import copies

ZERO, ANY = -1, -2

Axis = Int[Tensor, "N"]


def widened(old: int, new: int, rest: int = ZERO) -> Axis:
    """The old places first."""
    axis = torch.full((new,), rest)
    axis[:old] = torch.arange(old)
    return axis


def joined(*parts: tuple[Axis, int]) -> Axis:
    """Axes one behind the other, each with its old size."""
    found, start = list[Tensor](), 0
    for axis, size in parts:
        found.append(torch.where(axis >= 0, axis + start, axis))
        start += size
    return torch.cat(found)


@dataclass(frozen=True, slots=True, eq=False)
class Axes:
    """The axes of one layer. `residual` is what norms put out and layers add; `raw` is the residual itself, whose last
    place is ANY if it holds the constant."""

    residual: Axis
    raw: Axis
    q: Axis
    k: Axis
    v: Axis
    mixed: Axis  # outputs of the heads
    gate: Axis
    up: Axis
    units: Axis  # of the MLP: silu(gate) * up

    @property
    def qkv(self) -> Axis:
        sizes = [int(axis.max()) + 1 for axis in (self.q, self.k, self.v)]
        return joined(*zip((self.q, self.k, self.v), sizes, strict=True))


def layer_axes(old: ModelConfig, new: ModelConfig, constant: bool) -> Axes:
    """Of a layer that the old model has."""
    residual = widened(old.hidden_size, new.hidden_size)
    raw = residual.clone()
    if constant:
        raw[-1] = ANY
    gate, up = _gates(old.intermediate_size, new.intermediate_size)
    return Axes(residual, raw, *_heads(old, new), gate, up, widened(old.intermediate_size, new.intermediate_size))


def added_axes(axes: Axes) -> Axes:
    """Of a layer that the old model has not: every head and every unit of the MLP gives zero."""
    any_q, any_k = torch.full_like(axes.q, ANY), torch.full_like(axes.k, ANY)
    v, mixed, units = (torch.full_like(axis, ZERO) for axis in (axes.v, axes.mixed, axes.units))
    return Axes(axes.residual, axes.raw, any_q, any_k, v, mixed, *_gates(0, len(units)), units)


def _gates(old: int, new: int) -> tuple[Axis, Axis]:
    """One factor of every unused unit is zero: of every other unit the gate."""
    gate, up = widened(old, new, ANY), widened(old, new, ANY)
    gate[old::2], up[old + 1 :: 2] = ZERO, ZERO
    return gate, up


def _heads(old: ModelConfig, new: ModelConfig) -> tuple[Axis, Axis, Axis, Axis]:
    """q, k, v and the heads' outputs. Old key/value heads come first, each as often as its heads need it."""
    wide, narrow = new.head_dim, old.head_dim
    q = torch.full((new.num_heads, wide), ANY)  # beside zero keys, or in heads whose outputs nothing reads
    k = torch.full((new.num_kv_heads, wide), ANY)
    v = torch.full((new.num_kv_heads, wide), ZERO)
    mixed = torch.full((new.num_heads, wide), ZERO)
    pairs, own = rotated_places(narrow, wide), torch.arange(narrow)
    times, shared, share = copies(old, new), new.num_heads // new.num_kv_heads, old.num_heads // old.num_kv_heads
    for slot in range(old.num_kv_heads * times):
        kv, copy = divmod(slot, times)
        k[slot] = ZERO
        k[slot, pairs] = v[slot, :narrow] = kv * narrow + own
        for j in range(shared):
            head, of_kv = slot * shared + j, copy * shared + j
            if of_kv < share:
                q[head, pairs] = mixed[head, :narrow] = (kv * share + of_kv) * narrow + own
            else:
                mixed[head, :narrow] = ANY  # it mixes real values
    return q.flatten(), k.flatten(), v.flatten(), mixed.flatten()


def rotated_places(narrow: int, wide: int) -> Int[Tensor, "narrow"]:
    """Where the dimensions of a head stand in a wider one, so that every pair (i, i + half) keeps its frequency."""
    first = torch.arange(narrow // 2) * (wide // narrow)
    return torch.cat([first, wide // 2 + first])
