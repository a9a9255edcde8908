"""Doubt: leave a drafter alone whose drafts fail although they should not.

A draft of which nothing is accepted had a chance to fail, by the drafter's own estimate as corrected so far. The product of
these chances along a run of failures is the chance of the whole run. Where it falls below `IMPROBABLE`, the estimates are
wrong: the drafter broke, or the text became another one, and means that follow slowly would draft on for dozens of rounds.
The drafter then pauses, and each time its next draft fails as well, twice as long.
"""

from dataclasses import dataclass, field

IMPROBABLE = 0.005
AGAIN = 0.1  # where a text ended in doubt the next one begins with a run of this chance
_LEAST = 0.05  # the chance to fail of a draft that was thought sure
_FIRST, _LONGEST = 24, 192  # rounds of a pause


@dataclass(slots=True)
class _Run:
    chance: float = 1.0  # of the failures in a row
    left: int = 0  # rounds of the pause
    length: int = 0  # of the last pause; 0: none since the last success


@dataclass(slots=True)
class Doubt:
    """Of one drafter, by slot."""

    runs: dict[int, _Run] = field(default_factory=dict[int, _Run])
    ended: bool = False  # whether the last text ended in doubt

    def _run(self, slot: int) -> _Run:
        if slot not in self.runs:
            self.runs[slot] = _Run(AGAIN if self.ended else 1.0)
        return self.runs[slot]

    def pauses(self, slot: int) -> bool:
        """Whether the drafter is left alone in this round."""
        return self._run(slot).left > 0

    def rest(self, slot: int) -> None:
        """A round without this drafter."""
        run = self._run(slot)
        run.left = max(run.left - 1, 0)

    def learn(self, slot: int, chance: float, accepted: bool) -> None:
        """One draft of which something was accepted or not, and the chance that something would be."""
        run = self._run(slot)
        if accepted:
            run.chance, run.length = 1.0, 0
            return
        run.chance *= min(max(1 - chance, _LEAST), 1.0)
        if run.length or run.chance < IMPROBABLE:
            run.length = min(2 * run.length or _FIRST, _LONGEST)
            run.left, run.chance = run.length, 1.0

    def free(self, slot: int) -> None:
        run = self.runs.pop(slot, None)
        if run is not None:
            self.ended = run.length > 0
