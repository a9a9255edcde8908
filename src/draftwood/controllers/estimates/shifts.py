"""Shifts: how much better or worse than the measured table a drafter does on each text, learned from finished rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftwood.controllers.estimates.acceptance import Outlook

_SETTLE = 20, 60  # rounds that a new shift and an old one weigh
_WIDEST = 4.0


@dataclass(slots=True)
class _Shift:
    value: float = 0.0  # on the log-odds of a level
    rounds: int = 0  # drafted


@dataclass(slots=True)
class Shifts:
    """One shift for each slot, and one of all texts together where new ones begin. `step`: how fast they follow rounds."""

    outlook: Outlook
    step: float = 5.0
    shared: _Shift = field(default_factory=_Shift)
    own: dict[int, _Shift] = field(default_factory=dict[int, _Shift])

    def accepted(self, slot: int, temperature: float) -> np.ndarray:
        """Tokens that each size is expected to yield here. [S]"""
        known = self.own.setdefault(slot, _Shift(self.shared.value))
        return self.outlook.accepted(temperature, known.value)

    def learn(self, slot: int, size: int, temperature: float, kept: int, levels: int) -> None:
        """A draft of the size at this place: of so many judged levels so many were accepted."""
        if slot not in self.own:
            return
        for each in (self.own[slot], self.shared):
            expected = self.outlook.accepted_by(size, temperature, each.value, levels)
            gain = self.step / min(_SETTLE[0] + each.rounds, _SETTLE[1])
            each.value = min(max(each.value + gain * (kept - expected) / levels, -_WIDEST), _WIDEST)
            each.rounds += 1

    def fade(self, slots: Sequence[int]) -> None:
        """A round without a draft: what was learned of these texts fades, so that one that became easier is tried again."""
        for slot in slots:
            if slot in self.own:
                self.own[slot].value += 0.02 * (self.shared.value - self.own[slot].value)
        self.shared.value *= 0.99

    def free(self, slot: int) -> None:
        self.own.pop(slot, None)
