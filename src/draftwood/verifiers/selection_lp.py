"""Chances of pairs, by a linear programme: which of two tokens goes on, so that the winner's distribution covers most of p.

    maximise sum z_i,   z_i <= p_i,   z_i <= won_i,   0 <= w_ij <= 1
    won_i = r_i q_i + r_i below_q + below_r q_i + sum over j != i of  r_i q_j w_ij + r_j q_i (1 - w_ji)

for the s best ranked tokens; all others lose against them. s^2 + s variables, solved on the host for one node at a time.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from draftwood.core.host import host


def best_chances(
    p: Float[Tensor, "B s"],
    r: Float[Tensor, "B s"],
    q: Float[Tensor, "B s"],
    below_r: Float[Tensor, "B"],
    below_q: Float[Tensor, "B"],
    where: Bool[Tensor, "B"],
) -> Float[Tensor, "B s s"]:
    """w[b, i, j]: the chance of the first, of rank i, against the second, of rank j. By rank alone where not asked for, or
    where the solver fails: the winner's distribution is made of these numbers, so any are exact."""
    size = p.shape[1]
    columns = (p, r, q, below_r[:, None], below_q[:, None], where[:, None].to(p.dtype))
    nodes: list[list[float]] = host(torch.cat(columns, dim=1))
    by_rank = np.triu(np.ones((size, size)))
    known: dict[tuple[float, ...], np.ndarray] = {}  # sequences of one prompt often stand at the same place
    for node in map(tuple, nodes):
        if node not in known:
            chances = (
                solved(node[:size], node[size : 2 * size], node[2 * size : 3 * size], *node[-3:-1])
                if node[-1]
                else None
            )
            known[node] = by_rank if chances is None else chances
    return torch.from_numpy(np.stack([known[tuple(node)] for node in nodes])).to(p)


def solved(
    best: Sequence[float], first: Sequence[float], second: Sequence[float], below_r: float, below_q: float
) -> np.ndarray | None:
    """The best chances of one node, from p, r and q of its best ranked tokens; None if the solver finds none."""
    from scipy.optimize import linprog

    p, r, q = (np.asarray(probs, dtype=np.float64) for probs in (best, first, second))
    size = len(p)
    pair = np.outer(r, q)  # the first is i, the second j
    # won = base + slope @ w, the pairs flattened row by node; a pair of equals is decided already.
    base = np.diag(pair) + r * below_q + below_r * q + (pair.sum(0) - np.diag(pair))
    slope = np.zeros((size, size, size))
    for i in range(size):
        slope[i, i, :] += pair[i]
        slope[i, :, i] -= pair[:, i]
        slope[i, i, i] = 0.0
    slope = slope.reshape(size, -1)
    done = linprog(
        np.concatenate([-np.ones(size), np.zeros(size * size)]),
        A_ub=np.hstack([np.eye(size), -slope]),
        b_ub=base,
        bounds=[(0.0, max(float(most), 0.0)) for most in p] + [(0.0, 1.0)] * (size * size),
        method="highs",
    )
    if done.status != 0 or done.x is None or not np.isfinite(done.x).all():
        return None
    chances = np.clip(done.x[size:].reshape(size, size), 0.0, 1.0)
    np.fill_diagonal(chances, 1.0)
    return chances
