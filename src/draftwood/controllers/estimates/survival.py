"""Survival: how likely a drafted token is accepted, learned from finished rounds.

A drafter estimates the chance c of each node, given that its parent is accepted. What it says is corrected by a line over
log-odds, shared by all requests, and by a shift of each request, whose text may be easier or harder to guess:

    chance = 1 / (1 + exp(-(slope * log(c / (1 - c)) + offset + shift)))

Where the position of a node in its draft is told, the line has an offset for each position. A drafter that estimates nothing
says 1/2: then the offset alone is learned, which is the acceptance of the position.
"""

from dataclasses import dataclass, field
from math import exp, log

from draftwood.controllers.estimates.calibration import Calibration

_SURE = 6.0  # log-odds beyond which a chance says nothing more
_RATE = 0.05  # steps of the shared line
_OWN = 0.25  # steps of a request's shift
_WIDEST = 4.0  # of the shift
_FIRST = 16  # nodes that the beginning of a position's offset weighs


def log_odds(chance: float) -> float:
    """Within the limits that are told apart."""
    if chance <= 0.0:
        return -_SURE
    return _SURE if chance >= 1.0 else min(max(log(chance / (1 - chance)), -_SURE), _SURE)


@dataclass(slots=True)
class Survival:
    """The correction of one drafter. `shifts`: of each slot; `follow`: steps of them."""

    slope: float = 1.0
    offset: float = 0.0
    seen: float = 0.0  # nodes that were judged; the first ones move the line more
    shifts: dict[int, float] = field(default_factory=dict[int, float])
    positions: list[float] = field(default_factory=list[float])  # offsets of the first, second, .. token of a draft
    judged: list[int] = field(default_factory=list[int])  # nodes of each position
    calibration: Calibration = field(default_factory=Calibration)
    follow: float = _OWN

    def chance(self, slot: int, estimate: float, position: int | None = None) -> float:
        """Of a node whose drafter estimates it so, in this slot; `position`: 0 is the first drafted token."""
        offset = self.offset if position is None else self.offset_of(position)
        return 1 / (1 + exp(-(self.slope * log_odds(estimate) + offset + self.shifts.get(slot, 0.0))))

    def offset_of(self, position: int) -> float:
        """Positions that were never reached are as the deepest one that was."""
        return self.positions[min(position, len(self.positions) - 1)] if self.positions else self.offset

    def estimate(self, slot: int, chance: float) -> float:
        """The inverse: what a drafter says of a node that has this chance."""
        return 1 / (1 + exp(-(log_odds(chance) - self.offset - self.shifts.get(slot, 0.0)) / self.slope))

    def learn(self, slot: int, estimate: float, accepted: bool, position: int | None = None) -> None:
        """One judged node."""
        x, chance = log_odds(estimate), self.chance(slot, estimate, position)
        error = accepted - chance
        self.calibration.learn(chance, accepted)
        self.seen += 1
        rate = _RATE / (1 + self.seen / 1000) ** 0.5
        self.slope = min(max(self.slope + rate * error * x / _SURE, 0.2), 3.0)
        if position is None:
            self.offset = min(max(self.offset + rate * error, -_WIDEST), _WIDEST)
        else:
            self._learn_position(position, rate, error)
        self.shifts[slot] = min(max(self.shifts.get(slot, 0.0) + self.follow * error, -_WIDEST), _WIDEST)

    def _learn_position(self, position: int, rate: float, error: float) -> None:
        """The first nodes of a position move its offset far: 4 is what a unit of chance is in log-odds at 1/2."""
        while len(self.positions) <= position:
            self.positions.append(self.offset_of(len(self.positions)))
            self.judged.append(0)
        self.judged[position] += 1
        rate = max(rate, 4 / (_FIRST + self.judged[position]))
        self.positions[position] = min(max(self.positions[position] + rate * error, -_WIDEST), _WIDEST)

    def rest(self, slot: int) -> None:
        """A round without such a draft: what was learned of this text fades, so that it is tried again."""
        if slot in self.shifts:
            self.shifts[slot] *= 0.99

    def free(self, slot: int) -> None:
        self.shifts.pop(slot, None)
