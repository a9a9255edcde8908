"""Survival: how likely a retrieved token is accepted, learned from finished rounds.

A drafter estimates the chance c of each node, given that its parent is accepted. What it says is corrected by a line over
log-odds, shared by all requests, and by a shift of each request, whose text may be easier or harder to copy:

    chance = 1 / (1 + exp(-(slope * log(c / (1 - c)) + offset + shift)))
"""

from dataclasses import dataclass, field
from math import exp, log

_SURE = 6.0  # log-odds beyond which a chance says nothing more
_RATE = 0.05  # steps of the shared line
_OWN = 0.25  # steps of a request's shift
_WIDEST = 4.0  # of the shift


def log_odds(chance: float) -> float:
    """Within the limits that are told apart."""
    if chance <= 0.0:
        return -_SURE
    return _SURE if chance >= 1.0 else min(max(log(chance / (1 - chance)), -_SURE), _SURE)


@dataclass(slots=True)
class Survival:
    """The correction of one drafter. `shifts`: of each slot."""

    slope: float = 1.0
    offset: float = 0.0
    seen: float = 0.0  # nodes that were judged; the first ones move the line more
    shifts: dict[int, float] = field(default_factory=dict[int, float])

    def chance(self, slot: int, estimate: float) -> float:
        """Of a node whose drafter estimates it so, in this slot."""
        return 1 / (1 + exp(-(self.slope * log_odds(estimate) + self.offset + self.shifts.get(slot, 0.0))))

    def estimate(self, slot: int, chance: float) -> float:
        """The inverse: what a drafter says of a node that has this chance."""
        return 1 / (1 + exp(-(log_odds(chance) - self.offset - self.shifts.get(slot, 0.0)) / self.slope))

    def learn(self, slot: int, estimate: float, accepted: bool) -> None:
        """One judged node."""
        x = log_odds(estimate)
        error = accepted - self.chance(slot, estimate)
        self.seen += 1
        rate = _RATE / (1 + self.seen / 1000) ** 0.5
        self.slope = min(max(self.slope + rate * error * x / _SURE, 0.2), 3.0)
        self.offset = min(max(self.offset + rate * error, -_WIDEST), _WIDEST)
        self.shifts[slot] = min(max(self.shifts.get(slot, 0.0) + _OWN * error, -_WIDEST), _WIDEST)

    def rest(self, slot: int) -> None:
        """A round without such a draft: what was learned of this text fades, so that it is tried again."""
        if slot in self.shifts:
            self.shifts[slot] *= 0.99

    def free(self, slot: int) -> None:
        self.shifts.pop(slot, None)
