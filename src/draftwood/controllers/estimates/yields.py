"""Yields: tokens that a drafter's chains bring, levels that are drafted and nodes that are scored, learned from finished
rounds.

For drafters that end a chain where they grow uncertain, so that its length is not known before. Running means, of all texts
and of each text; a text begins with the mean of all, which begins with a prior.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

_FORGET = 0.9  # weight of the past of one text, per draft
_SHARED = 0.99  # of all texts
_PRIOR = 20.0  # drafts that a prior counts as
_BEGIN = 8.0  # drafts that the mean of all texts counts as for one text


class Yield(NamedTuple):
    """Of one draft."""

    accepted: float  # tokens
    levels: float  # drafted
    nodes: float  # scored: of what is drafted, as many as pay


_NONE = Yield(0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Sums:
    sums: Yield = _NONE
    drafts: float = 0.0

    def fade(self, by: float) -> None:
        self.sums, self.drafts = Yield(*(by * x for x in self.sums)), by * self.drafts

    def add(self, one: Yield) -> None:
        self.sums = Yield(*(a + b for a, b in zip(self.sums, one, strict=True)))
        self.drafts += 1

    def mean(self, prior: Yield, weight: float) -> Yield:
        total = self.drafts + weight
        return Yield(*((x + weight * before) / total for x, before in zip(self.sums, prior, strict=True)))


@dataclass(slots=True)
class Yields:
    """`prior`: of a draft before any was made."""

    prior: Yield
    shared: _Sums = field(default_factory=_Sums)
    own: dict[int, _Sums] = field(default_factory=dict[int, _Sums])

    def expected(self, slot: int) -> Yield:
        """Of the next draft in this slot."""
        all_texts = self.shared.mean(self.prior, _PRIOR)
        return self.own[slot].mean(all_texts, _BEGIN) if slot in self.own else all_texts

    def learn(self, slot: int, found: Yield) -> None:
        for sums, by in ((self.own.setdefault(slot, _Sums()), _FORGET), (self.shared, _SHARED)):
            sums.fade(by)
            sums.add(found)

    def rest(self, slot: int) -> None:
        """A round without such a draft: what is known fades towards the prior, so that the drafter is tried again."""
        if slot in self.own:
            self.own[slot].fade(0.98)
        self.shared.fade(0.999)

    def free(self, slot: int) -> None:
        self.own.pop(slot, None)
