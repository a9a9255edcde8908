"""Summary: passes, tokens and expected time of some rounds, recorded or replayed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from draftwood.bench.trace.costs import Costs
from draftwood.bench.trace.records import RoundRecord


@dataclass(frozen=True, slots=True)
class Summary:
    """`passes`: of all requests, each round counting once for every sequence that emitted in it. `seconds_per_token`: of
    rounds that only decode. `notes`: what the reader must know, a sentence each."""

    name: str
    how: str  # measured, replayed, simulated ...
    passes: float
    tokens: int
    rounds: tuple[float, float, float]  # that accepted all, some and none of their draft
    drafted: float  # tokens that were drafted and scored
    seconds_per_token: float | None
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0

    def ratio(self, plain: "Summary") -> float | None:
        """How many times as fast as plain decoding."""
        if not self.seconds_per_token or not plain.seconds_per_token:
            return None
        return plain.seconds_per_token / self.seconds_per_token

    def record(self, plain: "Summary | None") -> dict[str, Any]:
        """As JSON. None: there is nothing to compare with."""
        ratio = None if plain is None else self.ratio(plain)
        found = {**asdict(self), "tokens_per_pass": self.tokens_per_pass, "ratio_to_plain": ratio}
        return found | {"rounds": dict(zip(("all", "some", "none"), self.rounds, strict=True))}


def counted(rounds: Sequence[RoundRecord]) -> tuple[int, int, tuple[int, int, int], int]:
    """Passes, tokens, rounds that accepted all, some and none of their draft, and drafted tokens."""
    passes = tokens = drafted = 0
    every = some = none = 0
    for each in (each for rnd in rounds for each in rnd.sequences):
        if not each.kept:
            continue
        passes, tokens, drafted = passes + 1, tokens + each.kept, drafted + len(each.tokens)
        depth = max(each.depths())
        if depth:
            every += each.accepted == depth
            none += each.accepted == 0
            some += 0 < each.accepted < depth
    return passes, tokens, (every, some, none), drafted


def decoding(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Rounds that only decode, and emitted something."""
    return [each for each in rounds if each.decodes and each.emitted]


def measured(name: str, rounds: Sequence[RoundRecord], notes: tuple[str, ...] = ()) -> Summary:
    """With the recorded times."""
    passes, tokens, found, drafted = counted(rounds)
    timed = decoding(rounds)
    emitted = sum(each.emitted for each in timed)
    seconds = sum(each.times.total for each in timed) / emitted if emitted else None
    return Summary(name, "recorded", passes, tokens, found, drafted, seconds, notes)


def priced(
    name: str,
    how: str,
    rounds: Sequence[RoundRecord],
    costs: Costs,
    host_draft: float | None = None,
    notes: tuple[str, ...] = (),
) -> Summary:
    """With the seconds that these costs expect. `host_draft`: of a drafter that runs no model; by default the costs' own,
    else the mean of these rounds."""
    passes, tokens, found, drafted = counted(rounds)
    timed = decoding(rounds)
    own = [each.times["propose"] for each in timed if not each.times.draft_passes]
    if host_draft is None:
        host_draft = costs.host_draft if costs.host_draft is not None else (fmean(own) if own else 0.0)
    emitted = sum(each.emitted for each in timed)
    seconds = sum(costs.seconds(each.times, host_draft) for each in timed) / emitted if emitted else None
    return Summary(name, how, passes, tokens, found, drafted, seconds, (*notes, *_far(timed, costs)))


def _far(timed: Sequence[RoundRecord], costs: Costs) -> tuple[str, ...]:
    """A sentence if the rounds have passes outside what the costs were measured on."""
    if not timed:
        return ()
    notes: list[str] = []
    if any(each.times.draft_passes for each in timed) and not costs.model.draft_seconds(1):
        notes.append("drafting is priced at nothing: the costs do not say what a draft pass takes")
    least, most = (f(each.times.tokens for each in timed) for f in (min, max))
    if least < costs.passes[0]:
        notes.append(
            f"passes of {least} token{'s'[: least - 1]} are priced as the smallest measured ones, of {costs.passes[0]}"
        )
    if most > costs.passes[1]:
        notes.append(f"passes of up to {most} tokens are extrapolated: the largest measured one has {costs.passes[1]}")
    return tuple(notes)
