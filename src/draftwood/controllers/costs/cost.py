"""The one cost model: seconds of a target pass by tokens and context, and of a draft; measured, updated live.

Pass time is a broken line over the number of tokens, with knots at powers of two, because products jump there. A knot is
itself a line over the cache entries that attention reads: sixteen tokens read every entry sixteen times, one token once.
Every round is one more observation; old ones fade, outliers of a busy machine are clipped.
"""

from dataclasses import dataclass, field
from math import log2

from draftwood.controllers.costs.draft_cost import DraftCost
from draftwood.core.verdict import Times

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LONGEST = 3600.0  # seconds; a clock that says more is wrong, and one wrong sum would stay
_LEAST = 0.05  # share of a pass: what more tokens cost is not told apart below it
_LEVEL = 64.0**2  # contexts that spread over fewer entries than this root say little about the cost of an entry


@dataclass(slots=True)
class _Knot:
    """Weighted sums of what was observed near one number of tokens. They fade with every observation of any size, which is
    made up for when this knot is looked at: means do not change by it."""

    weight: float = 0.0
    context: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0  # of contexts
    products: float = 0.0  # of context and seconds
    faded: int = 0  # observations that the sums have faded by

    def at(self, context: int) -> float:
        """The line of least squares, leaning towards a level one and never falling."""
        x, y = self.context / self.weight, self.seconds / self.weight
        spread = self.squares / self.weight - x * x
        slope = max(0.0, self.products / self.weight - x * y) / (spread + _LEVEL)
        return max(1e-9, y + slope * (context - x))

    def fade(self, forget: float, observed: int) -> None:
        """To the weight that the sums have after so many observations."""
        by, self.faded = forget ** (observed - self.faded), observed
        self.weight, self.context, self.seconds = by * self.weight, by * self.context, by * self.seconds
        self.squares, self.products = by * self.squares, by * self.products

    def scale(self, by: float) -> None:
        """So many times the seconds, at every context."""
        self.seconds, self.products = by * self.seconds, by * self.products

    def add(self, part: float, context: int, seconds: float) -> None:
        self.weight += part
        self.context += part * context
        self.seconds += part * seconds
        self.squares += part * context * context
        self.products += part * context * seconds


@dataclass(slots=True)
class CostModel:
    """`forget`: weight of the past per observation. `outlier`: times the estimate that one observation counts at most; inf
    keeps all as they are. Nothing is known at first: estimates follow `prior` until measured."""

    forget: float = 0.98
    outlier: float = 3.0
    prior: float = 0.03  # seconds of a one-token pass before anything was measured
    knots: list[_Knot] = field(default_factory=lambda: [_Knot() for _ in KNOTS])
    draft: DraftCost = field(default_factory=DraftCost)
    rest: float = 0.0
    _rounds: float = 0.0
    _observed: int = 0

    def pass_seconds(self, tokens: int, context: int = 0) -> float:
        """Expected seconds of a target pass over `tokens` tokens with `context` cache entries attended."""
        low, share = _between(tokens)
        line = self._line(context, low + 1 if share > 0 else low)
        return (1 - share) * line[low] + share * line[-1]

    def draft_seconds(self, passes: int, nodes: int | None = None) -> float:
        """Expected seconds of a draft of so many passes and nodes, a chain by default."""
        return self.draft.seconds(passes, passes if nodes is None else nodes) if passes else 0.0

    def rest_seconds(self) -> float:
        """Expected seconds of a round outside target pass and drafter."""
        return self.rest

    def observe(self, times: Times) -> None:
        """One finished round."""
        if times.tokens and 0 < times["score"] < LONGEST:
            self._observe_pass(times.tokens, times.context, times["score"])
            rest = times.total - times["score"] - times["propose"]
            if 0 <= rest < LONGEST:
                if self._rounds > 3:
                    rest = min(rest, self.outlier * self.rest)  # a drafter that reads a prompt, or a busy moment
                self._rounds = self.forget * self._rounds + 1
                self.rest += (rest - self.rest) / self._rounds
        if times.draft_passes and 0 <= times["propose"] < LONGEST:
            self.draft.observe(times.draft_passes, times.draft_nodes, times["propose"])

    def correct(self, times: Times, plain: int, share: float, most: float = 4.0) -> None:
        """One round with a draft says how wrong all estimates are alike: what passes cost beyond one of `plain` tokens, and
        what drafts cost, moves by this share of the difference. The round counts `most` times the estimate at most."""
        base, expected = self.pass_seconds(plain, times.context), self.pass_seconds(times.tokens, times.context)
        least = _LEAST * base
        more = max(expected - base, least)
        seen = min(times["score"], most * expected) - base
        by = max(1 + share * (seen / more - 1), 1 / most)
        for size, knot in zip(KNOTS, self.knots, strict=True):
            if size > plain and knot.weight > 0:
                value = knot.at(times.context)
                above = max(value - base, least if by > 1 else 0.0)
                knot.scale((base + by * above) / value if above else 1.0)
        drafted = self.draft_seconds(times.draft_passes, times.draft_nodes)
        if drafted > 0 and 0 <= times["propose"] < LONGEST:
            self.draft.scale(1 + share * (min(times["propose"] / drafted, most) - 1))

    def _observe_pass(self, tokens: int, context: int, seconds: float) -> None:
        low, share = _between(tokens)
        near = [(part, self.knots[i]) for i, part in ((low, 1 - share), (low + 1, share)) if part > 0]
        for _, knot in near:
            knot.fade(self.forget, self._observed)
        if all(knot.weight > 3 for _, knot in near):
            seconds = min(seconds, self.outlier * sum(part * knot.at(context) for part, knot in near))
        self._observed += 1
        for part, knot in near:
            knot.fade(self.forget, self._observed)
            knot.add(part, context, seconds)

    def _line(self, context: int, upto: int) -> list[float]:
        """Seconds at every knot up to this one; unmeasured knots are filled from measured ones and never fall below a
        smaller pass."""
        places = [i for i, knot in enumerate(self.knots) if knot.weight > 0]
        if not places:
            return [self.prior * (1 + i) for i in range(upto + 1)]
        line: list[float] = []
        after = 0  # the first measured knot that is not behind
        for i in range(upto + 1):
            while after < len(places) and places[after] < i:
                after += 1
            if after == len(places):
                # Beyond the largest pass ever seen, assume that time grows with the tokens: pessimism keeps trees small.
                value = self.knots[places[-1]].at(context) * KNOTS[i] / KNOTS[places[-1]]
            elif places[after] == i or after == 0:
                value = self.knots[places[after]].at(context)
            else:
                a, b = places[after - 1], places[after]
                below, above = self.knots[a].at(context), self.knots[b].at(context)
                value = below + (above - below) * (i - a) / (b - a)
            line.append(max(value, line[-1]) if line else value)
        return line


def _between(tokens: int) -> tuple[int, float]:
    """The knot at or below `tokens`, and how far it is on the way to the next, in log2."""
    at = min(max(log2(max(tokens, 1)), 0.0), len(KNOTS) - 1.0)
    low = min(int(at), len(KNOTS) - 2)
    return low, at - low
