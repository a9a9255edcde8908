"""The one cost model: seconds of a target pass by tokens and context, and of a draft pass; measured, updated live.

Pass time is a broken line over the number of tokens (knots at powers of two, because products jump there) plus a term for
the cached rows that attention reads. Every pass is one more observation; old ones fade, outliers of a busy machine are
clipped.
"""

from dataclasses import dataclass, field
from math import log2

from draftwood.core.verdict import Times

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def _zeros() -> list[float]:
    return [0.0] * len(KNOTS)


@dataclass(slots=True)
class CostModel:
    """`forget`: weight of the past per observation. Nothing is known at first: prices follow `prior` until measured."""

    forget: float = 0.98
    prior: float = 0.03  # seconds of a one-token pass before anything was measured
    seconds: list[float] = field(default_factory=_zeros)
    weight: list[float] = field(default_factory=_zeros)
    per_row: float = 0.0  # seconds per cached row that one pass reads
    draft: float = 0.0
    _drafted: float = 0.0

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        """Expected seconds of a target pass over `tokens` tokens with `context` cached rows in sight."""
        low, share = _between(tokens)
        line = self._line()
        return (1 - share) * line[low] + share * line[low + 1] + self.per_row * context

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
        low, share = _between(tokens)
        hat = {low: 1 - share, low + 1: share}
        known = sum(part * self.weight[i] for i, part in hat.items())
        expected = self.pass_seconds(tokens, context)
        if known > 3:
            seconds = min(seconds, 3 * expected)
        gap = seconds - expected
        if known > 3 and context > 64:
            # What the line cannot explain is slowly given to the context, never below zero.
            self.per_row = max(0.0, self.per_row + 0.02 * gap / context)
        base = max(1e-9, seconds - self.per_row * context)
        for i, part in hat.items():
            if part > 0 and self.weight[i] == 0:
                self.seconds[i] = base
        gap = base - sum(part * self.seconds[i] for i, part in hat.items())
        self.weight = [w * self.forget for w in self.weight]
        size = sum(part * part for part in hat.values())
        for i, part in hat.items():
            self.weight[i] += part
            self.seconds[i] += part * gap / size / (1 + known)

    def _line(self) -> list[float]:
        """Seconds at every knot; unmeasured knots are filled from measured ones and never fall below a smaller pass."""
        known = [i for i, w in enumerate(self.weight) if w > 0]
        if not known:
            return [self.prior * (1 + i) for i in range(len(KNOTS))]
        line: list[float] = []
        after = 0  # the first measured knot that is not behind
        for i in range(len(KNOTS)):
            while after < len(known) and known[after] < i:
                after += 1
            if after == len(known):
                # Beyond the largest pass ever seen, assume that time grows with the tokens: pessimism keeps trees small.
                value = self.seconds[known[-1]] * KNOTS[i] / KNOTS[known[-1]]
            elif known[after] == i or after == 0:
                value = self.seconds[known[after]]
            else:
                a, b = known[after - 1], known[after]
                value = self.seconds[a] + (self.seconds[b] - self.seconds[a]) * (i - a) / (b - a)
            line.append(max(value, line[-1]) if line else value)
        return line


def _between(tokens: int) -> tuple[int, float]:
    """The knot at or below `tokens`, and how far it is on the way to the next, in log2."""
    at = min(max(log2(max(tokens, 1)), 0.0), len(KNOTS) - 1.0)
    low = min(int(at), len(KNOTS) - 2)
    return low, at - low
