"""Losing cases: questions that a method answers at a lower speed than plain decoding, and where the time went."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.bench.report.time_parts import SECTIONS, seconds_by_part
from draftwood.bench.spec.answer import Answer


@dataclass(frozen=True, slots=True)
class Loss:
    """One question. Texts may differ in length, above temperature 0 or of other engines, so speeds are compared."""

    own: Answer
    plain: Answer

    @property
    def ratio(self) -> float:
        """Speed over plain decoding's, below 1."""
        return self.own.speed / self.plain.speed

    @property
    def more(self) -> dict[str, float]:
        """Seconds more than plain decoding by part, for as many tokens; the largest first, savings last."""
        own, plain = seconds_by_part(self.own), seconds_by_part(self.plain)
        scale = self.own.emitted / self.plain.emitted
        parts = {part: own.get(part, 0.0) - scale * plain.get(part, 0.0) for part in SECTIONS}
        return {part: parts[part] for part in sorted(parts, key=lambda part: -parts[part]) if parts[part]}


def losses(answers: Sequence[Answer], method: str, baseline: str) -> list[Loss]:
    """Questions that both answered and `method` answered at a lower speed, the worst first."""
    plain = {a.question: a for a in answers if a.method == baseline and a.good and a.speed > 0}
    own = [a for a in answers if a.method == method and a.good and a.question in plain]
    found = [Loss(a, plain[a.question]) for a in own if 0 < a.speed < plain[a.question].speed]
    return sorted(found, key=lambda loss: loss.ratio)
