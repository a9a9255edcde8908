"""The one cost model: seconds of a target pass by tokens and context, and of a draft pass; measured, updated live.

Pass time is a broken line over the number of tokens (knots at powers of two, because products jump there) plus a term for
the cached rows that attention reads. Every pass is one more observation; old ones fade, outliers of a busy machine are
clipped.
"""

from dataclasses import dataclass, field

import numpy as np

from draftwood.core.verdict import Times

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(slots=True)
class CostModel:
    """`forget`: weight of the past per observation. Nothing is known at first: prices follow `prior` until measured."""

    forget: float = 0.98
    prior: float = 0.03  # seconds of a one-token pass before anything was measured
    seconds: np.ndarray = field(default_factory=lambda: np.zeros(len(KNOTS)))
    weight: np.ndarray = field(default_factory=lambda: np.zeros(len(KNOTS)))
    per_row: float = 0.0  # seconds per cached row that one pass reads
    draft: float = 0.0
    _drafted: float = 0.0

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        """Expected seconds of a target pass over `tokens` tokens with `context` cached rows in sight."""
        return float(_hat(tokens) @ self._line()) + self.per_row * context

    def draft_seconds(self, passes: int) -> float:
        """Expected seconds of so many passes of the drafter."""
        return passes * self.draft

    def observe(self, times: Times) -> None:
        """One finished round."""
        if times.tokens and times["score"] > 0:
            self._observe_pass(times.tokens, times.context, times["score"])
        if times.draft_passes:
            each = times["propose"] / times.draft_passes
            self._drafted = self.forget * self._drafted + 1
            self.draft += (each - self.draft) / self._drafted

    def _observe_pass(self, tokens: int, context: int, seconds: float) -> None:
        hat = _hat(tokens)
        known = float(hat @ self.weight)
        expected = self.pass_seconds(tokens, context)
        if known > 3:
            seconds = min(seconds, 3 * expected)
        gap = seconds - expected
        if known > 3 and context > 64:
            # What the line cannot explain is slowly given to the context, never below zero.
            self.per_row = max(0.0, self.per_row + 0.02 * gap / context)
        base = max(1e-9, seconds - self.per_row * context)
        self.seconds = np.where((hat > 0) & (self.weight == 0), base, self.seconds)
        gap = base - float(hat @ self.seconds)
        self.weight = self.weight * self.forget + hat
        self.seconds = self.seconds + hat * gap / float(hat @ hat) / (1 + known)

    def _line(self) -> np.ndarray:
        """Seconds at every knot; unmeasured knots are filled from measured ones and never fall below a smaller pass."""
        known = self.weight > 0
        if not known.any():
            return self.prior * (1 + np.log2(KNOTS))
        at = np.log2(KNOTS)
        line = np.interp(at, at[known], self.seconds[known])
        last = np.flatnonzero(known)[-1]
        # Beyond the largest pass ever seen, assume that time grows with the tokens: pessimism keeps trees small.
        for i in range(last + 1, len(KNOTS)):
            line[i] = line[last] * KNOTS[i] / KNOTS[last]
        return np.maximum.accumulate(line)


def _hat(tokens: int) -> np.ndarray:
    """Weights of the two knots around `tokens`, linear in log2."""
    hat = np.zeros(len(KNOTS))
    at = np.clip(np.log2(max(tokens, 1)), 0, len(KNOTS) - 1)
    low = min(int(at), len(KNOTS) - 2)
    hat[low], hat[low + 1] = 1 - (at - low), at - low
    return hat
