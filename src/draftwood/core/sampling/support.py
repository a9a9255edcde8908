"""Support: distributions over the tokens that have probability, and nothing else.

Top-p leaves a few hundred of a vocabulary of fifty thousand. Whoever works with what is left works a hundred times less;
the whole vocabulary is gone through once, by the softmax and by the search for what stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from draftwood.core.sampling.random import Places

Array = NDArray[Any]
_CUTS = (64.0, 4.0, 0.0)  # times what a token may have at most if all that are smaller can go


@dataclass(frozen=True, slots=True, eq=False)
class Support:
    """One distribution per row: W columns, of which some may be empty, with the token of each. `ids` None: the whole vocabulary."""

    prob: Float[Tensor, "B W"]
    ids: Int[Tensor, "B W"] | None
    vocab_size: (
        int  # an empty column has this id, which no token has; tokens rise from left to right, empty ones stand last
    )

    @property
    def places(self) -> Places | None:
        """Where a pick finds the tokens."""
        return None if self.ids is None else Places(self.ids, self.vocab_size)

    def dense(self) -> Float[Tensor, "B V"]:
        """Over the whole vocabulary."""
        return self.prob if self.ids is None else Places(self.ids, self.vocab_size).spread(self.prob)

    def put(self, other: "Support", where: Bool[Tensor, "B"]) -> "Support":
        """Rows of `other` where asked, ours elsewhere; the narrower of the two gets empty columns."""
        if self.ids is None or other.ids is None:
            return Support(torch.where(where[:, None], other.dense(), self.dense()), None, self.vocab_size)
        prob = torch.where(where[:, None], *widened(other.prob, self.prob, 0.0))
        ids = torch.where(where[:, None], *widened(other.ids, self.ids, self.vocab_size))
        return Support(prob, ids, self.vocab_size)


@dataclass(frozen=True, slots=True, eq=False)
class Few:
    """Distributions of R rows one behind the other, on the host: as long as they are, however broad the broadest is."""

    prob: Float[Tensor, "Z"]
    ids: Int[Tensor, "Z"]  # rising within a row
    count: Int[Tensor, "R"]  # how many each row has
    vocab_size: int

    def row(self) -> Int[Tensor, "Z"]:
        """Whose entry it is."""
        return torch.repeat_interleave(self.count, output_size=len(self.ids))

    def take(self, rows: Int[Tensor, "S"]) -> "Few":
        """Some of the rows, which may come several times."""
        count = self.count[rows]
        shift = (self.count.cumsum(0) - self.count)[rows] - (count.cumsum(0) - count)
        at = torch.repeat_interleave(shift, count)
        at += torch.arange(len(at))
        return Few(self.prob[at], self.ids[at], count, self.vocab_size)

    def among(self, rows: Int[Tensor, "R"], batch: int) -> "Few":
        """The same distributions as those rows of a batch, rising, whose others have none."""
        return Few(self.prob, self.ids, self.count.new_zeros(batch).index_copy_(0, rows, self.count), self.vocab_size)

    def table(self) -> Support:
        """As wide as the broadest, and one column at least."""
        if len(self.count) == 1 and len(self.ids):
            return Support(self.prob[None], self.ids[None], self.vocab_size)
        shape = len(self.count), max(1, int(self.count.max())) if len(self.count) else 1
        filled = torch.arange(shape[1]) < self.count[:, None]
        prob = self.prob.new_zeros(shape).masked_scatter_(filled, self.prob)
        return Support(
            prob, self.ids.new_full(shape, self.vocab_size).masked_scatter_(filled, self.ids), self.vocab_size
        )

    def dense(self) -> Float[Tensor, "R V"]:
        """Over the whole vocabulary."""
        probs = self.prob.new_zeros(len(self.count), self.vocab_size)
        return probs.index_put_((self.row(), self.ids), self.prob)


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Two distributions per row over the same columns: the tokens that p has, tokens that were asked for and are none of these, and
    last all others together, where p is nothing."""

    p: Float[Tensor, "B W"]
    q: Float[Tensor, "B W"]
    ids: Int[Tensor, "B W"]  # as a Support's
    columns: Int[Tensor, "B C"]  # of the tokens asked for


@dataclass(frozen=True, slots=True, eq=False)
class Uncut:
    """Logits on their way to distributions: the rows `at`, -1 where none is asked for, each with options of its own."""

    logits: Float[Tensor, "U V"]
    at: Int[Tensor, "R"]
    temperature: Sequence[float]  # 0: the best token alone
    top_p: Sequence[float]
    min_p: Sequence[float]
    best: Int[Tensor, "U"] | None = None  # where the greatest logit of every row stands, if somebody knows it


class Cut(Protocol):
    """Who can go from logits to what sampling leaves of them, faster than stock operations: a backend with kernels. None:
    some row is no distribution."""

    def __call__(self, x: Uncut, /) -> Few | None: ...


class Cutter(Cut, Protocol):
    """Who can also put another distribution beside it."""

    def beside(
        self, x: Uncut, tokens: Int[Tensor, "R C"], q: Float[Tensor, "L V"], probs: Int[Tensor, "R"], /
    ) -> Beside | None:
        """Row `probs` of q, -1 for none. `tokens` get columns of their own; V is no token."""
        ...


def widened(x: Tensor, y: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """Both with as many columns as the wider one."""
    width = max(x.shape[-1], y.shape[-1])
    one, two = (
        z if z.shape[-1] == width else torch.nn.functional.pad(z, (0, width - z.shape[-1]), value=fill) for z in (x, y)
    )
    return one, two


def likeliest(prob: Float[Tensor, "R V"], top_p: Float[Tensor, "R"]) -> Few | None:
    """The most probable tokens until their mass reaches top_p, ties included, with sum 1; where top_p is 1, all that have
    any, as they are. On the host. None: some row is no distribution.

    Nothing sorts the vocabulary. Tokens too small to matter are left out by comparison first: all below (1 - top_p) / V can
    go together, so that bound always serves, and most distributions are served by a higher one. The others are counted into bins
    by size, and only the bin where the mass is reached is looked at closely.
    """
    values, goal = _array(prob), _array(top_p)
    rows, vocab_size = values.shape
    least: Array = np.where(goal < 1, (1 - goal) / vocab_size, 0.0)
    done: list[tuple[Array, Array, Array]] = []  # row, column and probability of tokens
    left: Array = np.nonzero(np.ones(rows))[0]
    for factor in _CUTS:
        part: Array = values if len(left) == rows else values[left]
        cut: Array = np.maximum(least[left] * factor, np.finfo(values.dtype).tiny).astype(values.dtype)
        at: Array = np.flatnonzero(part >= cut[:, None])
        row, column, found = at // vocab_size, at % vocab_size, part.reshape(-1)[at]
        mass = np.bincount(row, weights=found, minlength=len(left))
        on: Array = goal[left] < 1
        short: Array = on & (mass < goal[left]) & (factor > 0)
        if not (mass > 0)[~short].all():
            return None
        stay = _reaching(row, found, np.where(short | ~on, np.inf, goal[left])) & ~short[row]
        row, column, found = row[stay], column[stay], found[stay]
        mass = np.bincount(row, weights=found, minlength=len(left))
        done.append((left[row], column, (found / np.where(on, mass, 1.0)[row]).astype(values.dtype)))
        left = left[short]
        if not len(left):
            break
    row, column, found = (np.concatenate(parts) for parts in zip(*done, strict=True))
    if len(done) > 1:
        order = np.argsort(row, kind="stable")
        row, column, found = row[order], column[order], found[order]
    return Few(_tensor(found), _tensor(column), _tensor(np.bincount(row, minlength=rows)), vocab_size)


def _reaching(row: Array, found: Array, goal: Array) -> Array:
    """Which entries are among the greatest of their row that together reach its goal, ties included; all of them where
    the goal is out of reach."""
    rows = len(goal)
    bits = (found.view(np.uint32) >> 17) if found.dtype == np.float32 else (found.view(np.uint64) >> np.uint64(46))
    bins = int(bits.max(initial=0)) - bits.astype(np.int64)  # the greatest first, 64 bins for every halving
    width = int(bins.max(initial=0)) + 1
    mass = np.bincount(row * width + bins, weights=found, minlength=rows * width).reshape(rows, width).cumsum(1)
    last = (mass < goal[:, None]).sum(1)  # the bin that reaches it
    edge = np.flatnonzero(bins == last[row])
    stay = bins < last[row]
    if len(edge):
        table = -np.sort(-_table(row[edge], found[edge], rows, 0.0), axis=1)
        before = np.where(last > 0, mass[np.arange(rows), np.maximum(last - 1, 0)], 0.0)
        reached = (before[:, None] + table.cumsum(1, dtype=np.float64) < goal[:, None]).sum(1)
        floor = np.take_along_axis(table, np.minimum(reached, table.shape[1] - 1)[:, None], axis=1)[:, 0]
        stay[edge] = found[edge] >= floor[row[edge]]
    return stay


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
