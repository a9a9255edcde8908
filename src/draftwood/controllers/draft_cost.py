"""Seconds of a draft by its levels and nodes: one line for chains, one for trees, each fitted to what was measured.

    seconds = start + a * levels + b * nodes

A chain of one sequence may run in a single call of its model, so what it costs says little about trees.
"""

from dataclasses import dataclass, field

import numpy as np

_RIDGE = 1e-2  # keeps the coefficients small while few sizes have been measured


@dataclass(slots=True)
class _Line:
    """Least squares with fading weights over (1, levels, nodes)."""

    squares: np.ndarray = field(default_factory=lambda: np.zeros((3, 3)))
    products: np.ndarray = field(default_factory=lambda: np.zeros(3))
    solution: np.ndarray | None = None

    def add(self, x: np.ndarray, seconds: float, forget: float) -> None:
        self.squares = forget * self.squares + np.outer(x, x)
        self.products = forget * self.products + seconds * x
        self.solution = None

    def at(self, x: np.ndarray) -> float | None:
        if not self.squares[0, 0]:
            return None
        if self.solution is None:
            # Negative costs come from noise; what is left is fitted again by its mean.
            found = np.linalg.solve(self.squares + _RIDGE * np.eye(3), self.products).clip(0)
            fitted = float(found @ self.squares[0])
            self.solution = found * (self.products[0] / fitted if fitted > 0 else 0.0)
        return float(self.solution @ x)


@dataclass(slots=True)
class DraftCost:
    """`forget`: weight of the past per observation. `outlier`: times the estimate that one observation counts at most.
    Without any measurement a draft costs nothing."""

    forget: float = 0.98
    outlier: float = 3.0
    chain: _Line = field(default_factory=_Line)
    tree: _Line = field(default_factory=_Line)

    def seconds(self, levels: int, nodes: int) -> float:
        """Expected seconds of drafting. Where one kind of draft was never measured, the other one answers for it."""
        lines = (self.chain, self.tree) if nodes <= levels else (self.tree, self.chain)
        x = _x(levels, nodes)
        return next((found for line in lines if (found := line.at(x)) is not None), 0.0)

    def observe(self, levels: int, nodes: int, seconds: float) -> None:
        line, x = self.chain if nodes <= levels else self.tree, _x(levels, nodes)
        before = line.at(x)
        if before is not None and line.squares[0, 0] > 3:
            seconds = min(seconds, self.outlier * before)  # a busy moment of the machine
        line.add(x, seconds, self.forget)


def _x(levels: int, nodes: int) -> np.ndarray:
    return np.array([1.0, levels, max(nodes, levels)])
