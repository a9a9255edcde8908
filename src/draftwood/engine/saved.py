"""Saved: what drafting has saved each request, by measured rounds.

A request that got n tokens from a round of T seconds would have got them from n rounds of plain decoding, P seconds each:

    saved += n P - T        of a round without a draft: what was spent on looking for one

P is the mean of rounds without a draft, by the number of sequences, less what they spent on looking for one. Until such a
round was measured for about as many sequences nothing is known, and nothing is counted. A round that reads a prompt says
little about either. What a drafter does at the end of a round to follow the text is in P and in T alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftwood.core.request import Request
from draftwood.core.verdict import Times

_NEW = 0.1  # weight of a new round, once some were measured
_OUTLIER = 3.0  # times the mean that one round counts at most: a busy moment of the machine
_FAR = 2  # times as many sequences, or as few, say nothing any more


@dataclass(slots=True)
class PlainRounds:
    """Mean seconds of rounds without a draft, and how many were measured, by the number of sequences."""

    means: dict[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])

    def observe(self, batch: int, seconds: float) -> None:
        mean, count = self.means.get(batch, (seconds, 0))
        if count > 3:
            seconds = min(seconds, _OUTLIER * mean)
        self.means[batch] = mean + max(_NEW, 1 / (count + 1)) * (seconds - mean), count + 1

    def seconds(self, batch: int) -> float | None:
        """Of a round, between the nearest numbers of sequences that were measured."""
        below = max((b for b in self.means if b <= batch), default=0)
        above = min((b for b in self.means if b >= batch), default=0)
        near = [b for b in (below, above) if b and max(b, batch) <= _FAR * min(b, batch)]
        if not near:
            return None
        first, last = near[0], near[-1]
        share = (batch - first) / (last - first) if last > first else 0.0
        return (1 - share) * self.means[first][0] + share * self.means[last][0]

    def count(self, requests: Sequence[Request], emitted: Sequence[int], times: Times) -> None:
        """One round: learn from it if it has no draft, and add it to the statistics of its requests."""
        batch, looked = len(requests), times["propose"]
        if not batch or times.prompt_tokens:
            return
        drafted = bool(times.draft_passes or times.draft_nodes)
        if not drafted:
            self.observe(batch, times.total - looked)
        plain = self.seconds(batch)
        if plain is None:
            return
        for request, tokens in zip(requests, emitted, strict=True):
            saved = tokens * plain - times.total if drafted else -looked
            request.stats.saved_ms = (request.stats.saved_ms or 0.0) + 1000 * saved
