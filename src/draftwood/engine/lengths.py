"""Lengths: how long an answer will be, from answers that have ended, and how wrong that was.

Answers are classed by the length of their prompts. What is expected of one that has g tokens already is the mean of those
that became longer than g: where a few answers are very long, one that is long already will probably stay so.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from draftwood.core.request import Request

KEPT = 256  # answers of a class, and of all
FEW = 4  # with fewer of its class, all classes count
UNKNOWN = 64  # tokens, before any answer has ended


@dataclass(slots=True)
class Errors:
    """Estimates against what came true."""

    distance: float = 0.0
    true: float = 0.0

    def add(self, estimate: float, true: float) -> None:
        self.distance += abs(estimate - true)
        self.true += true

    @property
    def share(self) -> float | None:
        """The mean distance over the mean; None before anything ended."""
        return self.distance / self.true if self.true else None


class LengthEstimate(Protocol):
    """What a scheduler asks. A net that reads the prompt would be another one."""

    errors: Errors

    def remaining(self, request: Request) -> float: ...
    def learn(self, request: Request, expected: float) -> None: ...


@dataclass(slots=True)
class _Answers:
    """Lengths of the last answers, in order, and the sum from each place to the end."""

    last: deque[int] = field(default_factory=lambda: deque[int](maxlen=KEPT))
    lengths: list[int] = field(default_factory=list[int])
    sums: list[int] = field(default_factory=list[int])

    def learn(self, length: int) -> None:
        self.last.append(length)
        self.lengths = sorted(self.last)
        self.sums = list(accumulate(reversed(self.lengths)))[::-1]

    def longer(self, than: int) -> float | None:
        """Mean of those that became longer; None: there are few."""
        at = bisect_right(self.lengths, than)
        count = len(self.lengths) - at
        return self.sums[at] / count if count >= FEW else None


@dataclass(slots=True)
class Lengths:
    """By class, and of all together: tokens of answers that have ended."""

    known: dict[int, _Answers] = field(default_factory=lambda: defaultdict(_Answers))
    every: _Answers = field(default_factory=_Answers)
    errors: Errors = field(default_factory=Errors)

    def remaining(self, request: Request) -> float:
        """Tokens that are expected to come, at most as many as the request allows."""
        have, most = len(request.output), max(request.remaining, 0)
        own = self.known.get(_class(request))
        mean = None if own is None else own.longer(have)
        mean = self.every.longer(have) if mean is None else mean
        return min(max(have, UNKNOWN) if mean is None else mean - have, most)  # unknown: about as long again

    def learn(self, request: Request, expected: float) -> None:
        """An answer that has ended; `expected`: what was said of it when it came."""
        self.errors.add(expected, len(request.output))
        for each in (self.known[_class(request)], self.every):
            each.learn(len(request.output))


def _class(request: Request) -> int:
    return len(request.prompt).bit_length()
