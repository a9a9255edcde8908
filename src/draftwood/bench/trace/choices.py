"""Rounds by the choice that was made in them: which drafter, how often, with how many tokens and how much time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftwood.bench.trace.records import RoundRecord, SequenceRecord

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Choice:
    """All decoding rounds of one request in which the same drafters had a part."""

    name: str
    rounds: int
    drafted: float  # tokens of a round
    tokens: float  # emitted in a round
    seconds: float  # of a round

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def choices(rounds: Iterable[RoundRecord], sources: Sequence[str]) -> list[Choice]:
    """The most frequent first. `sources`: names of drafters by number. Rounds that read a prompt are left out."""
    found: dict[str, list[tuple[SequenceRecord, float]]] = {}
    for rnd in (rnd for rnd in rounds if rnd.decodes):
        for each in (each for each in rnd.sequences if each.kept):
            found.setdefault(named(each, sources), []).append((each, rnd.times.total))
    made: list[Choice] = []
    for name, several in found.items():
        drafted, tokens = (sum(f(each) for each, _ in several) for f in (lambda e: len(e.tokens), lambda e: e.kept))
        count = len(several)
        made.append(Choice(name, count, drafted / count, tokens / count, sum(s for _, s in several) / count))
    return sorted(made, key=lambda each: -each.rounds)


def named(each: SequenceRecord, sources: Sequence[str]) -> str:
    """Whose nodes the sequence got in this round."""
    own = sorted(set(each.sources)) if each.tokens else []
    return " and ".join(sources[i] if 0 <= i < len(sources) else f"source {i}" for i in own) or PLAIN
