"""Support: laws over the tokens that have probability, and nothing else.

Top-p leaves a few hundred of a vocabulary of fifty thousand. Whoever works with what is left works a hundred times less;
the whole vocabulary is gone through once, by the softmax and by the search for what stays.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from draftwood.core.noise import Places

Array = NDArray[Any]
_CUTS = (64.0, 8.0, 1.0, 0.0)  # times what a token may have at most if all that are smaller can go


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """One law per row: W columns, of which some may be empty, with the token of each. `ids` None: the whole vocabulary."""

    prob: Float[Tensor, "B W"]
    ids: Int[Tensor, "B W"] | None
    vocab: int  # an empty column has this id, which no token has; tokens rise from left to right, empty ones stand last

    @property
    def places(self) -> Places | None:
        """Where a pick finds the tokens."""
        return None if self.ids is None else Places(self.ids, self.vocab)

    def dense(self) -> Float[Tensor, "B V"]:
        """Over the whole vocabulary."""
        return self.prob if self.ids is None else Places(self.ids, self.vocab).spread(self.prob)

    def put(self, other: "Support", where: Bool[Tensor, "B"]) -> "Support":
        """Rows of `other` where asked, ours elsewhere; the narrower of the two gets empty columns."""
        if self.ids is None or other.ids is None:
            return Support(torch.where(where[:, None], other.dense(), self.dense()), None, self.vocab)
        prob = torch.where(where[:, None], *widened(other.prob, self.prob, 0.0))
        ids = torch.where(where[:, None], *widened(other.ids, self.ids, self.vocab))
        return Support(prob, ids, self.vocab)


def widened(x: Tensor, y: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """Both with as many columns as the wider one."""
    width = max(x.shape[-1], y.shape[-1])
    one, two = (
        z if z.shape[-1] == width else torch.nn.functional.pad(z, (0, width - z.shape[-1]), value=fill) for z in (x, y)
    )
    return one, two


def likeliest(prob: Float[Tensor, "R V"], top_p: Float[Tensor, "R"]) -> Support | None:
    """The most probable tokens until their mass reaches top_p, ties included, with sum 1; where top_p is 1, all that have
    any, as they are. On the host. None: some row is no law.

    Nothing sorts the vocabulary: tokens too small to matter are left out by comparison first, and as all tokens below
    (1 - top_p) / V can go together, there is a bound that always serves; most laws are served by a higher one.
    """
    values, goal = _array(prob), _array(top_p)
    rows, vocab = values.shape
    on = goal < 1
    least = np.where(on, (1 - goal) / vocab, 0.0)
    short, cut = np.ones_like(on), least
    at: Array = np.empty(0)
    row, found, mass = at, at, at
    for factor in _CUTS:
        cut = np.where(short, np.maximum(least * factor, np.finfo(values.dtype).tiny), cut)
        at = np.flatnonzero(values >= cut.astype(values.dtype)[:, None])
        row: Array = at // vocab
        found: Array = values.reshape(-1)[at]
        mass: Array = np.bincount(row, weights=found, minlength=rows)
        short = on & (mass < goal)
        if not short.any():
            break
    if not (mass > 0).all():
        return None
    if on.any():
        falling = -np.sort(-_table(row, found, rows, 0.0), axis=1)
        reached = (falling.cumsum(1, dtype=np.float64) < goal[:, None]).sum(1)
        floor = np.take_along_axis(falling, np.minimum(reached, falling.shape[1] - 1)[:, None], axis=1)[:, 0]
        stay = found >= np.where(on, floor, 0)[row]
        at, row, found = at[stay], row[stay], found[stay]
        mass = np.bincount(row, weights=found, minlength=rows)
        found = (found / np.where(on, mass, 1.0)[row]).astype(values.dtype)
    ids = _table(row, at - row * vocab, rows, vocab)
    return Support(_tensor(_table(row, found, rows, 0.0)), _tensor(ids), vocab)


def _array(x: Tensor) -> Array:
    return x.detach().numpy()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _tensor(x: Array) -> Tensor:
    return torch.from_numpy(x)  # pyright: ignore[reportUnknownMemberType]


def _table(row: Array, x: Array, rows: int, fill: float) -> Array:
    """Entries of rows one behind the other as a table, each row from the left."""
    if rows == 1:
        return x[None]
    count = np.bincount(row, minlength=rows)
    table = np.full((rows, int(count.max(initial=0))), fill, dtype=x.dtype)
    table[row, np.arange(len(x)) - (count.cumsum() - count)[row]] = x
    return table
