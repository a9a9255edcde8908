"""Where the time of an answer went: to the first token, then by part of the rounds."""

from collections.abc import Sequence

from draftwood.bench.spec.answer import Answer
from draftwood.core.verdict import PARTS

FIRST, OTHER, UNDIVIDED = "first token", "other", "decoding"
SECTIONS = (FIRST, *PARTS, OTHER, UNDIVIDED)  # undivided: engines and devices that do not report times by part
DRAFT = "draft"  # passes of a draft model; they are in "propose" too


def seconds_by_part(answer: Answer) -> dict[str, float]:
    """All seconds of an answer, in the order of SECTIONS; parts without time are left out."""
    rest = max(0.0, answer.seconds - answer.first_seconds)
    if not answer.parts:
        return _positive({FIRST: answer.first_seconds, UNDIVIDED: rest})
    parts = {part: answer.parts.get(part, 0.0) for part in PARTS}
    return _positive({FIRST: answer.first_seconds, **parts, OTHER: rest - sum(parts.values())})


def per_token(answers: Sequence[Answer]) -> dict[str, float]:
    """Seconds by part of all answers, over their tokens."""
    good = [a for a in answers if a.good and a.emitted]
    tokens, spent = sum(a.emitted for a in good), [seconds_by_part(a) for a in good]
    sums = {part: sum(each.get(part, 0.0) for each in spent) for part in SECTIONS}
    return {part: seconds / tokens for part, seconds in sums.items() if seconds > 0}


def draft_per_token(answers: Sequence[Answer]) -> float | None:
    """Seconds in passes of a draft model, over all tokens; None where no answer reports parts."""
    good = [a for a in answers if a.good and a.emitted and a.parts]
    return sum(a.parts.get(DRAFT, 0.0) for a in good) / sum(a.emitted for a in good) if good else None


def _positive(parts: dict[str, float]) -> dict[str, float]:
    return {part: seconds for part, seconds in parts.items() if seconds > 0}
