"""Yields: tokens that a drafter's chains bring and levels that they take, learned from finished rounds.

For drafters that end a chain where they grow uncertain, so that its length is not known before. Two running means, of all
texts and of each text; a text begins with the mean of all, which begins with a prior.
"""

from dataclasses import dataclass, field

_FORGET = 0.9  # weight of the past of one text, per draft
_SHARED = 0.99  # of all texts
_PRIOR = 20.0  # drafts that a prior counts as
_BEGIN = 8.0  # drafts that the mean of all texts counts as for one text


@dataclass(slots=True)
class _Sums:
    accepted: float = 0.0
    levels: float = 0.0
    drafts: float = 0.0

    def fade(self, by: float) -> None:
        self.accepted, self.levels, self.drafts = by * self.accepted, by * self.levels, by * self.drafts

    def add(self, accepted: float, levels: float, drafts: float = 1.0) -> None:
        self.accepted += drafts * accepted
        self.levels += drafts * levels
        self.drafts += drafts


@dataclass(slots=True)
class Yields:
    """`prior`: accepted tokens and levels of a draft before any was made."""

    prior: tuple[float, float]
    shared: _Sums = field(default_factory=_Sums)
    own: dict[int, _Sums] = field(default_factory=dict[int, _Sums])

    def expected(self, slot: int) -> tuple[float, float]:
        """Accepted tokens and levels of the next draft in this slot."""
        s, own = self.shared, self.own.get(slot) or _Sums()
        total = s.drafts + _PRIOR
        means = (s.accepted + _PRIOR * self.prior[0]) / total, (s.levels + _PRIOR * self.prior[1]) / total
        drafts = own.drafts + _BEGIN
        return (own.accepted + _BEGIN * means[0]) / drafts, (own.levels + _BEGIN * means[1]) / drafts

    def learn(self, slot: int, accepted: int, levels: int) -> None:
        for sums, by in ((self.own.setdefault(slot, _Sums()), _FORGET), (self.shared, _SHARED)):
            sums.fade(by)
            sums.add(accepted, levels)

    def rest(self, slot: int) -> None:
        """A round without such a draft: what is known fades towards the prior, so that the drafter is tried again."""
        if slot in self.own:
            self.own[slot].fade(0.98)
        self.shared.fade(0.999)

    def free(self, slot: int) -> None:
        self.own.pop(slot, None)
