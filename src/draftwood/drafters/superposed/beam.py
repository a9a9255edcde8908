"""Beam: k drafts that share one pass per token, on the host.

    step 1     the 2k best tokens of one distribution, of which k stay
    step t     drafts x tokens: log P(draft) + log s(token), the 2k best; what ends a text is finished, k others stay

Scores only fall, so the drafts differ in at least one token and the best finished ones cannot be overtaken.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Ranked(NamedTuple):
    """The best tokens of one distribution in falling order. `total`: log of the sum of exp(logit) over all tokens."""

    tokens: list[int]
    logits: list[float]
    total: float

    def first(self, count: int) -> "Ranked":
        return Ranked(self.tokens[:count], self.logits[:count], self.total)

    def tempered(self, temperature: float) -> list[float]:
        """log p of these tokens alone, at a temperature."""
        if not self.logits:
            return []
        x = [(logit - self.logits[0]) / temperature for logit in self.logits]
        total = math.log(sum(map(math.exp, x)))
        return [each - total for each in x]


class Draft(NamedTuple):
    """`score`: log P(draft), which ranks drafts. `chances`: of each token the log of the probability of the path to it, by
    the model alone at temperature 1."""

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    chances: tuple[float, ...] = ()

    def then(self, token: int, gain: float, logprob: float) -> "Draft":
        chance = (self.chances[-1] if self.chances else 0.0) + min(logprob, 0.0)
        return Draft((*self.tokens, token), self.score + gain, (*self.chances, chance))


@dataclass(frozen=True, slots=True)
class Beam:
    """At most `k` drafts that go on, the best first, and those that have ended."""

    k: int
    alive: tuple[Draft, ...] = (Draft(),)
    finished: tuple[Draft, ...] = ()

    def advance(
        self, ranked: Sequence[Ranked], gains: Sequence[Sequence[float]], ended: Callable[[Sequence[int]], bool]
    ) -> "Beam":
        """One token more for every draft. `ranked`, `gains`: for each draft its candidates and their log s, -inf for those
        that drop out. A draft that ends is kept if it is among the k best, as in beam search."""
        found = [
            draft.then(token, gain, logit - each.total)
            for draft, each, own in zip(self.alive, ranked, gains, strict=True)
            for token, logit, gain in zip(each.tokens, each.logits, own, strict=True)
            if gain > -math.inf
        ]
        found.sort(key=lambda draft: -draft.score)  # stable: of equal ones the better draft's better token is first
        alive: list[Draft] = []
        finished = list(self.finished)
        for rank, draft in enumerate(found[: 2 * self.k]):
            if not ended(draft.tokens):
                alive.append(draft)
            elif rank < self.k:
                finished.append(draft)
        return Beam(self.k, tuple(alive[: self.k]), tuple(finished))

    @property
    def done(self) -> bool:
        """Whether nothing that goes on can be among the k best any more."""
        if not self.alive:
            return True
        ends = sorted((draft.score for draft in self.finished), reverse=True)
        return len(ends) >= self.k and ends[self.k - 1] >= self.alive[0].score

    def best(self) -> list[Draft]:
        """The k best of all, finished or not."""
        return sorted((*self.finished, *self.alive), key=lambda draft: -draft.score)[: self.k]

    def weights(self) -> dict[int, float]:
        """Last tokens of the drafts that go on, each with its share of the superposed embedding: the softmax of the scores,
        those of equal tokens added."""
        mixed: dict[int, float] = {}
        for draft, weight in zip(self.alive, softmax([draft.score for draft in self.alive]), strict=True):
            mixed[draft.tokens[-1]] = mixed.get(draft.tokens[-1], 0.0) + weight
        return mixed


def softmax(scores: Sequence[float]) -> list[float]:
    """The shares of log weights; they sum to 1."""
    most = max(scores, default=0.0)
    x = [math.exp(score - most) for score in scores]
    return [each / sum(x) for each in x]
