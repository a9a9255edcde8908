"""Keyed coins and picks: random numbers that depend on their key and on nothing else, not on batch, order or device.

One uniform comes from one key (`keys.py`). The target's own sample is keyed by (seed, position) alone, so plain and
speculative decoding draw the same token there. No random numbers are made for a whole vocabulary: a pick is an inverse CDF
in float64 over token order, taken in three steps (in one where there are few columns).

Three steps, because rounding shifts a CDF by a millionth, and the thousands of improbable tokens of a vocabulary are
narrower than that: with one step, two passes that differ in their last bits disagree every few hundred tokens. With a
third of the digits of a token id at a time, each with a uniform of its own, no piece is that narrow.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from draftwood.core import host
from draftwood.core.sampling.keys import SMALL, digits, uniform

if TYPE_CHECKING:
    from draftwood.core.sampling.probs import TokenProbs

NARROW = 64  # columns none of which is narrower than a CDF's rounding


class Noise(Protocol):
    """What answers coins and picks. The engine holds `Keyed`; the exact tester forks every answer."""

    def coin(
        self, key: Int[Tensor, "B *S"], prob: Float[Tensor, "B *S"], where: Bool[Tensor, "B *S"], who: Sequence[int]
    ) -> Bool[Tensor, "B *S"]:
        """True with probability `prob`; False where `where` is False, and nothing is asked there. `who`: request ids."""
        ...

    def pick(
        self,
        key: Int[Tensor, "B *S"],
        probs: "Float[Tensor, 'B *S W'] | Int[Tensor, 'B *S W'] | TokenProbs",
        where: Bool[Tensor, "B *S"],
        who: Sequence[int],
    ) -> Int[Tensor, "B *S"]:
        """A column drawn from `probs` (any positive total), of TokenProbs a token; -1 where `where` is False or nothing has
        mass."""
        ...

    def uniforms(self, key: Int[Tensor, "B"]) -> Float[Tensor, "B 3"] | None:
        """The uniforms that decide a pick, for kernels that pick by themselves. None: only `pick` may be asked."""
        ...


class Keyed:
    """One uniform in [0, 1) per key, by a hash: the same alone, in any batch, on any device."""

    def coin(
        self, key: Int[Tensor, "B *S"], prob: Float[Tensor, "B *S"], where: Bool[Tensor, "B *S"], who: Sequence[int]
    ) -> Bool[Tensor, "B *S"]:
        return where & (uniform(key) < prob)

    def pick(
        self,
        key: Int[Tensor, "B *S"],
        probs: "Float[Tensor, 'B *S W'] | Int[Tensor, 'B *S W'] | TokenProbs",
        where: Bool[Tensor, "B *S"],
        who: Sequence[int],
    ) -> Int[Tensor, "B *S"]:
        if isinstance(probs, Tensor):
            return torch.where(where, invert(probs, digits(key)), -1)
        return probs.pick(digits(key), where)

    def uniforms(self, key: Int[Tensor, "B"]) -> Float[Tensor, "B 3"] | None:
        return digits(key)


def invert(probs: Float[Tensor, "*S W"] | Int[Tensor, "*S W"], u: Float[Tensor, "*S 3"]) -> Int[Tensor, "*S"]:
    """A column of a distribution (any positive total) from three uniforms: a stretch of columns, a stretch of that, a
    column. -1 when there is no mass. Few columns, and whole numbers, which have no rounding, take one step, so that empty
    columns behind them change nothing."""
    if probs.shape[-1] <= NARROW or not probs.is_floating_point():
        return choose(probs.double(), u[..., 0])
    cube = split(probs)
    first = choose(cube.sum((-1, -2), dtype=torch.float64), u[..., 0])
    square = take(cube, first)
    second = choose(square.sum(-1, dtype=torch.float64), u[..., 1])
    third = choose(take(square, second).double(), u[..., 2])
    side = cube.shape[-1]
    return torch.where(first >= 0, (first * side + second) * side + third, -1)


def split(probs: Float[Tensor, "*S W"]) -> Float[Tensor, "*S f f f"]:
    """Columns as three digits, padded with nothing."""
    side = _side(probs.shape[-1])
    padded = torch.nn.functional.pad(probs, (0, side**3 - probs.shape[-1]))
    return padded.view(*probs.shape[:-1], side, side, side)


@cache
def _side(columns: int) -> int:
    """How many values a digit has."""
    side = 1
    while side**3 < columns:
        side += 1
    return side


def invert_sparse(
    owner: Int[Tensor, "Z"],
    prob: Float[Tensor, "Z"],
    ids: Int[Tensor, "Z"],
    vocab_size: int,
    u: Float[Tensor, "R 3"],
    where: Bool[Tensor, "R"],
) -> Int[Tensor, "R"]:
    """The same token from R distributions of which only some entries are listed, each with its distribution and its token;
    more than NARROW tokens, on the host. -1 where nothing is asked for."""
    which, mass, rest, uniforms = _array(owner), _array(prob).astype(np.float64), _array(ids), _array(u)
    size, side = len(uniforms), _side(vocab_size)
    found: NDArray[Any] = np.zeros(size, np.int64)
    for step, unit in enumerate((side * side, side, 1)):
        digit = rest // unit
        pieces: NDArray[Any] = np.bincount(which * side + digit, weights=mass, minlength=size * side)
        piece = _chosen(pieces.reshape(size, side), uniforms[:, step])
        found = np.where(piece < 0, -1, found * side + piece)  # without mass in the first step there is none later
        stay = digit == piece[which]
        which, mass, rest = which[stay], mass[stay], rest[stay] - digit[stay] * unit
    return _tensor(np.where(_array(where), found, -1))


def take(pieces: Float[Tensor, "..."], index: Int[Tensor, "*S"]) -> Float[Tensor, "..."]:
    """The chosen piece of each: pieces [*S, f, ...] -> [*S, ...]."""
    at = index.clamp_min(0).view(*index.shape, *[1] * (pieces.ndim - index.ndim))
    shape = (*index.shape, 1, *pieces.shape[index.ndim + 1 :])
    return pieces.gather(index.ndim, at.expand(shape)).squeeze(index.ndim)


def choose(mass: Float[Tensor, "*S f"], u: Float[Tensor, "*S"]) -> Int[Tensor, "*S"]:
    """The first entry whose cumulated mass exceeds u times the total; -1 when there is no mass."""
    if host.on_host(mass.device) and mass.numel() <= SMALL:
        return _tensor(_chosen(_array(mass), _array(u)))
    cdf = mass.cumsum(-1)
    total = cdf[..., -1:].contiguous()
    column = torch.searchsorted(cdf, u[..., None] * total, right=True)
    # u < 1, but the product may round up to the total: then the last entry that has mass is the right one.
    last = torch.searchsorted(cdf, total, right=False)
    return torch.where(total > 0, torch.minimum(column, last), -1)[..., 0]


def _array(x: Tensor) -> NDArray[Any]:
    return x.numpy()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _chosen(mass: NDArray[Any], u: NDArray[Any]) -> NDArray[Any]:
    """`choose` for few numbers."""
    cdf = mass.cumsum(-1)
    total = cdf[..., -1]
    column = (cdf <= (u * total)[..., None]).sum(-1)
    last = (cdf < total[..., None]).sum(-1)
    return np.where(total > 0, np.minimum(column, last), -1)


def _tensor(x: NDArray[Any]) -> Tensor:
    return torch.from_numpy(x)  # pyright: ignore[reportUnknownMemberType]
