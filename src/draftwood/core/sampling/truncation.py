"""Which tokens top-k and top-p leave, found without sorting the vocabulary.

Truncations keep every token at or above a threshold value, so ties never depend on the order in which a sort saw them,
and a distribution never depends on the others of the batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from draftwood.core import host
from draftwood.core.host import put
from draftwood.core.sampling.probs import TokenProbs

Array = NDArray[Any]
_CUTS = (64.0, 4.0, 0.0)  # times what a token may have at most if all that are smaller can go


def top(prob: Float[Tensor, "*S W"], k: int) -> tuple[Float[Tensor, "*S k"], Int[Tensor, "*S k"]]:
    """The k greatest of each distribution in falling order, and their columns.

    On a CPU a search of the whole vocabulary is slow, so columns are dealt into groups: the k greatest lie in the k groups
    with the greatest heads, and only those are searched. Four to eight times faster at ten of 8,192 or 49,152.
    """
    width = prob.shape[-1]
    size = 16 if width < 32768 else 32
    if not host.on_host(prob.device) or width < 64 * k or width < 2048:
        whole = prob.topk(k, dim=-1)
        return whole.values, whole.indices
    if width % size:
        prob = torch.nn.functional.pad(prob, (0, size - width % size), value=-torch.inf)
    groups = prob.view(*prob.shape[:-1], size, -1)  # column c is in group c mod G
    head = groups.amax(-2).topk(k, dim=-1).indices
    found = groups.gather(-1, head[..., None, :].expand(*head.shape[:-1], size, k)).flatten(-2)
    best = found.topk(k, dim=-1)
    at = best.indices
    return best.values, head.gather(-1, at % k) + at // k * groups.shape[-1]


def top_k(x: Float[Tensor, "B K W"], keep: Sequence[int]) -> Float[Tensor, "B K W"]:
    """Logits whose smaller ones are -inf: of each sequence the `keep` greatest stay, ties included; 0: all."""
    width = x.shape[-1]
    best = top(x, min(max(keep), width))[0]
    place = put([min(k or width, best.shape[-1]) - 1 for k in keep], x.device)
    floor = best.gather(-1, place[:, None, None].expand(-1, x.shape[1], 1))
    off = put([k == 0 for k in keep], x.device, torch.bool)[:, None, None]
    return x.masked_fill((x < floor) & ~off, -torch.inf)


def top_p(prob: Float[Tensor, "B K W"], goals: Float[Tensor, "B"]) -> Float[Tensor, "B K W"]:
    """The most probable tokens until their mass reaches the goal, ties included, renormalised."""
    width = prob.shape[-1]
    if host.on_host(prob.device) and prob.numel():
        few = likeliest(prob.reshape(-1, width), goals[:, None].expand(prob.shape[:2]).reshape(-1))
        if few is not None:
            return few.dense().view(prob.shape)
    goal = goals[:, None, None]
    on = goal < 1
    # On an accelerator all are sorted: to find out how many are enough would be a host read.
    size = min(256, width) if host.on_host(prob.device) else width
    while True:
        best = prob.topk(size, dim=-1).values if size < width else prob.sort(dim=-1, descending=True).values
        mass = best.cumsum(-1, dtype=torch.float64)
        if size == width or bool(((mass[..., -1:] >= goal) | ~on).all()):
            break
        size = min(size * 4, width)
    reached: Int[Tensor, "B K"] = (mass < goal).sum(-1).clamp_max(size - 1)
    floor = best.gather(-1, reached[..., None])
    kept = prob.masked_fill((prob < floor) & on, 0.0)
    return kept / torch.where(on, kept.sum(-1, keepdim=True), torch.ones_like(floor))


def likeliest(prob: Float[Tensor, "R V"], top_p: Float[Tensor, "R"]) -> TokenProbs | None:
    """The most probable tokens until their mass reaches top_p, ties included, with sum 1; where top_p is 1, all that have
    any, as they are. Packed, on the host. None: some are no distributions.

    Nothing sorts the vocabulary. Tokens too small to matter are left out by comparison first: all below (1 - top_p) / V can
    go together, so that bound always serves, and most distributions are served by a higher one. The others are counted into
    bins by size, and only the bin where the mass is reached is looked at closely.
    """
    values, goal = _array(prob), _array(top_p)
    size, vocab_size = values.shape
    least: Array = np.where(goal < 1, (1 - goal) / vocab_size, 0.0)
    done: list[tuple[Array, Array, Array]] = []  # owner, column and probability of tokens
    left: Array = np.nonzero(np.ones(size))[0]
    for factor in _CUTS:
        part: Array = values if len(left) == size else values[left]
        cut: Array = np.maximum(least[left] * factor, np.finfo(values.dtype).tiny).astype(values.dtype)
        at: Array = np.flatnonzero(part >= cut[:, None])
        owner, column, found = at // vocab_size, at % vocab_size, part.reshape(-1)[at]
        mass = np.bincount(owner, weights=found, minlength=len(left))
        on: Array = goal[left] < 1
        short: Array = on & (mass < goal[left]) & (factor > 0)
        if not (mass > 0)[~short].all():
            return None
        stay = _reaching(owner, found, np.where(short | ~on, np.inf, goal[left])) & ~short[owner]
        owner, column, found = owner[stay], column[stay], found[stay]
        mass = np.bincount(owner, weights=found, minlength=len(left))
        done.append((left[owner], column, (found / np.where(on, mass, 1.0)[owner]).astype(values.dtype)))
        left = left[short]
        if not len(left):
            break
    owner, column, found = (np.concatenate(parts) for parts in zip(*done, strict=True))
    if len(done) > 1:
        order = np.argsort(owner, kind="stable")
        owner, column, found = owner[order], column[order], found[order]
    return TokenProbs(_tensor(found), vocab_size, _tensor(column), _tensor(np.bincount(owner, minlength=size)))


def _reaching(owner: Array, found: Array, goal: Array) -> Array:
    """Which entries are among the greatest of their distribution that together reach its goal, ties included; all of them
    where the goal is out of reach."""
    size = len(goal)
    bits = (found.view(np.uint32) >> 17) if found.dtype == np.float32 else (found.view(np.uint64) >> np.uint64(46))
    bins = int(bits.max(initial=0)) - bits.astype(np.int64)  # the greatest first, 64 bins for every halving
    width = int(bins.max(initial=0)) + 1
    mass = np.bincount(owner * width + bins, weights=found, minlength=size * width).reshape(size, width).cumsum(1)
    last = (mass < goal[:, None]).sum(1)  # the bin that reaches it
    edge = np.flatnonzero(bins == last[owner])
    stay = bins < last[owner]
    if len(edge):
        table = -np.sort(-_table(owner[edge], found[edge], size, 0.0), axis=1)
        before = np.where(last > 0, mass[np.arange(size), np.maximum(last - 1, 0)], 0.0)
        reached = (before[:, None] + table.cumsum(1, dtype=np.float64) < goal[:, None]).sum(1)
        floor = np.take_along_axis(table, np.minimum(reached, table.shape[1] - 1)[:, None], axis=1)[:, 0]
        stay[edge] = found[edge] >= floor[owner[edge]]
    return stay


def _array(x: Tensor) -> Array:
    return x.detach().numpy()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def _tensor(x: Array) -> Tensor:
    return torch.from_numpy(x)  # pyright: ignore[reportUnknownMemberType]


def _table(owner: Array, x: Array, size: int, fill: float) -> Array:
    """Entries of distributions one after another as a table, each from the left."""
    if size == 1:
        return x[None]
    count = np.bincount(owner, minlength=size)
    table = np.full((size, int(count.max(initial=0))), fill, dtype=x.dtype)
    table[owner, np.arange(len(x)) - (count.cumsum() - count)[owner]] = x
    return table
