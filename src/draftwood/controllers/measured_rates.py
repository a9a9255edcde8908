"""Measured rates: tokens and seconds of finished rounds over those that were expected, by depth.

An estimate can be wrong in a way that more rounds do not mend: a controller between it and the round keeps the likeliest
nodes only, so that positions seem to be accepted more often than they are; a drafter costs more beside other work than
alone. What drafted rounds really brought corrects the rate of every depth, and what rounds of one depth brought, ever more
as they grow many, its own. Plain rounds have a ratio of their own.
"""

from dataclasses import dataclass, field

_FORGET = 0.97  # weight of the past per round
_PRIOR = 4.0  # rounds as expected that a ratio begins with
_SHARED = 24.0  # rounds as those of all depths that the ratio of one begins with
_OUTLIER = 3.0  # times the expected seconds that one round counts at most: a busy moment of the machine


@dataclass(slots=True)
class _Ratio:
    """Sums over rounds, each divided by what was expected of it."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens = _FORGET * self.tokens + tokens
        self.seconds = _FORGET * self.seconds + min(seconds, _OUTLIER)

    def value(self, begin: float, weight: float) -> float:
        return (self.tokens + weight * begin) / (self.seconds + weight)


@dataclass(slots=True)
class MeasuredRates:
    """Of batches of one size."""

    plain: _Ratio = field(default_factory=_Ratio)
    drafted: _Ratio = field(default_factory=_Ratio)
    depths: dict[int, _Ratio] = field(default_factory=dict[int, _Ratio])

    def learn(self, depth: int, tokens: float, seconds: float) -> None:
        """One round of this depth: what it emitted and took, over what was expected."""
        if depth:
            self.depths.setdefault(depth, _Ratio()).add(tokens, seconds)
        (self.drafted if depth else self.plain).add(tokens, seconds)

    def ratio(self, depth: int) -> float:
        """What the estimated tokens per second of this depth are multiplied by."""
        shared = (self.drafted if depth else self.plain).value(1.0, _PRIOR)
        return self.depths[depth].value(shared, _SHARED) if depth in self.depths else shared
