"""Seconds of a draft by its levels and nodes: one line for chains, one for trees, each fitted to what was measured.

    seconds = start + a * levels + b * nodes

A chain of one sequence may run in a single call of its model, so what it costs says little about trees.
"""

from dataclasses import dataclass, field

Three = tuple[float, float, float]

_RIDGE = 1e-2  # keeps the coefficients small while few sizes have been measured
_EXACT = 8  # sequences of the largest batch that has costs of its own


@dataclass(slots=True)
class _Line:
    """Least squares with fading weights over x = (1, levels, nodes), in plain numbers: arrays take longer for so few."""

    squares: list[float] = field(default_factory=lambda: [0.0] * 6)  # sums of x_i x_j: 00, 01, 02, 11, 12, 22
    products: list[float] = field(default_factory=lambda: [0.0] * 3)  # of x_i and seconds
    solution: Three | None = None

    def add(self, x: Three, seconds: float, forget: float) -> None:
        a, b, c = x
        new = a * a, a * b, a * c, b * b, b * c, c * c
        self.squares = [forget * old + more for old, more in zip(self.squares, new, strict=True)]
        self.products = [forget * old + seconds * each for old, each in zip(self.products, x, strict=True)]
        self.solution = None

    def scale(self, by: float) -> None:
        self.products = [by * each for each in self.products]
        self.solution = None

    def at(self, x: Three) -> float | None:
        if not self.squares[0]:
            return None
        if self.solution is None:
            self.solution = self._solved()
        return sum(each * part for each, part in zip(self.solution, x, strict=True))

    def _solved(self) -> Three:
        """Of the normal equations, by cofactors."""
        aa, ab, ac, bb, bc, cc = self.squares
        y0, y1, y2 = self.products
        aa, bb, cc = aa + _RIDGE, bb + _RIDGE, cc + _RIDGE
        m00, m01, m02 = bb * cc - bc * bc, ac * bc - ab * cc, ab * bc - ac * bb
        m11, m12, m22 = aa * cc - ac * ac, ab * ac - aa * bc, aa * bb - ab * ab
        by = 1 / (aa * m00 + ab * m01 + ac * m02)
        found = (
            max(by * (m00 * y0 + m01 * y1 + m02 * y2), 0.0),
            max(by * (m01 * y0 + m11 * y1 + m12 * y2), 0.0),
            max(by * (m02 * y0 + m12 * y1 + m22 * y2), 0.0),
        )
        # Negative costs come from noise; what is left is fitted again by its mean.
        fitted = sum(each * part for each, part in zip(found, self.squares, strict=False))
        scale = y0 / fitted if fitted > 0 else 0.0
        return scale * found[0], scale * found[1], scale * found[2]


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
        if before is not None and line.squares[0] > 3:
            seconds = min(seconds, self.outlier * before)  # a busy moment of the machine
        line.add(x, seconds, self.forget)

    def scale(self, by: float) -> None:
        """So many times the seconds, for drafts of every size."""
        for line in (self.chain, self.tree):
            line.scale(by)


def like(batch: int) -> int:
    """Sizes of batches that share their costs: small ones have their own."""
    return batch if batch <= _EXACT else 1 << (batch - 1).bit_length()


def of_batch(known: dict[int, DraftCost], batch: int, deepest: int) -> DraftCost:
    """Of drafts for so many sequences; `known`: by size, that of one among them. Where none was ever timed it begins
    as if sequences were drafted one after another: that is hardly ever too little, and rounds will show."""
    size, one = like(batch), known[1]
    if size not in known:
        known[size] = DraftCost(one.forget, one.outlier)
        for depth in range(1, deepest + 1):
            known[size].observe(depth, batch * depth, batch * one.seconds(depth, depth))
    return known[size]


def _x(levels: int, nodes: int) -> Three:
    return 1.0, levels, max(nodes, levels)
