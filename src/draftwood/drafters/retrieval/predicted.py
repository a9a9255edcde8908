"""Predicted: one request's prediction, how far its answer follows it, and how much of it was drafted and accepted.

prediction    a b c d e f g h            the answer leaves it at c, and follows it again from f on
answer        a b x f g
                  ^ left                 anchored where the last tokens agree longest, the nearest after `left` first
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Integer

from draftwood.core.request import Request
from draftwood.drafters.retrieval.anchors import anchors
from draftwood.drafters.retrieval.edits import Edit, Edits
from draftwood.drafters.retrieval.merged import Place
from draftwood.drafters.retrieval.text_match import TextMatch

TAIL = 32  # tokens of the answer that are compared
SURE = 3  # agreeing tokens from which on an anchor is the new cursor
CERTAIN = 8  # agreeing tokens from which on other places are not drafted beside it
START = 6  # before the first token the prediction's beginning is as good as after so many agreeing tokens
GAP = 4  # tokens outside the prediction for which a replacement of equal length is drafted, too
BYTES = 4  # of text that count as an agreeing token
TRUST, FADE = 4.0, 0.5  # weight of a place for each agreeing token, and of the next one after it


@dataclass(frozen=True, slots=True)
class Offer:
    """A continuation that was found, and the position in the prediction of each of its tokens; -1 is not of it."""

    place: Place
    positions: Sequence[int]


@dataclass(slots=True)
class Predicted:
    """`cursor`: the next token of the prediction. While `left` is None, the answer follows it; then it is the length of the
    answer before the first token that did not."""

    request: Request
    tokens: tuple[int, ...]
    ids: Integer[np.ndarray, "n"]
    cursor: int = 0
    match: int = START  # agreeing tokens before the cursor
    left: int | None = None
    moved: bool = False  # the cursor was set anew since the answer left the prediction
    read: int = 0  # tokens of the answer that were compared while it followed
    edits: Edits = field(default_factory=Edits)
    offers: list[Offer] = field(default_factory=list[Offer])  # of this round
    counts: "Counts" = field(default_factory=lambda: Counts())

    @staticmethod
    def of(request: Request) -> "Predicted":
        return Predicted(request, request.prediction, np.array(request.prediction))

    def find(self, depth: int, spelling: TextMatch | None) -> list[Offer]:
        """Continuations of the answer so far, the most probable first."""
        inside = self._follow()
        if inside is not None:
            begun = len(self.request.output) - self.read
            tokens, positions, _ = self.edits.applied(self.tokens, self.cursor + len(inside.old), depth)
            tokens = [*inside.new[begun:], *tokens][:depth]
            return [Offer(Place(tokens, 1.0, self.match + begun), [*[-1] * (len(inside.new) - begun), *positions])]
        if self.left is None:
            return self._offers(self.cursor, depth, 1.0, self.match)
        return self._anchored(depth, spelling)

    def _follow(self) -> Edit | None:
        """Compare the answer's new tokens, as far as it follows. The edit that it is in the middle of, if any."""
        output = self.request.output
        while self.left is None and self.read < len(output):
            edit = self.edits.at(self.tokens, self.cursor)
            if edit is not None:
                have = tuple(output[self.read : self.read + len(edit.new)])
                if have == edit.new:
                    edit.made += 1
                    self._advance(len(edit.old), len(edit.new))
                    continue
                if have == edit.new[: len(have)]:
                    return edit
            if self.cursor < len(self.tokens) and output[self.read] == self.tokens[self.cursor]:
                if edit is not None:
                    edit.missed += 1
                self._advance(1, 1)
            else:
                self.left, self.moved = self.read, False
        return None

    def _advance(self, predicted: int, answered: int) -> None:
        self.cursor, self.match, self.read = self.cursor + predicted, self.match + answered, self.read + answered

    def _anchored(self, depth: int, spelling: TextMatch | None) -> list[Offer]:
        """Continuations at the places that agree with the end of the answer."""
        assert self.left is not None
        output = self.request.output
        found = anchors(self.ids, output[-TAIL:], self.cursor, 4)
        agreed = found[0][0] if found else 0
        weights = [TRUST ** min(n, 8) * FADE**i for i, (n, _) in enumerate(found)]
        places = zip(found, weights, strict=True)
        offers = [each for (n, end), weight in places for each in self._offers(end, depth, weight, n)]
        if agreed < SURE:
            offers += self._by_text(depth, spelling, agreed)
            gap = len(output) - self.left
            if gap <= GAP and not self.moved:
                offers += self._offers(self.cursor + gap, depth, 1.0, 0)
            return offers
        end = found[0][1]
        if not self.moved:
            self.edits.learn(self.tokens[self.cursor : end - agreed], output[self.left : len(output) - agreed])
        self.cursor, self.match, self.moved = end, agreed, True
        if agreed >= CERTAIN or len(found) == 1 or found[1][0] < agreed - 1:
            self.left, self.read = None, len(output)
            return self._offers(end, depth, 1.0, agreed)
        return offers

    def _by_text(self, depth: int, spelling: TextMatch | None, agreed: int) -> list[Offer]:
        """The place whose text agrees, if it agrees in more than the ids do: tokens may be split differently there."""
        if spelling is None:
            return []
        output = self.request.output
        rest = spelling.rest(self.tokens, min(self.cursor, len(self.tokens)), output, depth)
        if rest is None or rest.agreed <= sum(map(len, spelling.bytes_of(output[len(output) - agreed :]))):
            return []
        match = max(1, rest.agreed // BYTES)
        return [Offer(Place(rest.tokens[:depth], TRUST ** min(match, 8), match), rest.positions)]

    def _offers(self, start: int, depth: int, weight: float, match: int) -> list[Offer]:
        """The prediction from here on, and with the edits that fit."""
        tokens = self.tokens[start : start + depth]
        edited, positions, trust = self.edits.applied(self.tokens, start, depth)
        plain = Offer(Place(tokens, weight * (1 - trust), match), range(start, start + len(tokens)))
        return [Offer(Place(edited, weight * trust, match), positions), plain] if trust else [plain]


@dataclass(slots=True)
class Counts:
    """Positions of the prediction that were drafted, and what became of them."""

    accepted: set[int] = field(default_factory=set[int])
    rejected: set[int] = field(default_factory=set[int])
    before: int = 0  # length of the answer before the round that is not settled yet
    drafted: list[int] = field(default_factory=list[int])  # of that round
    kept: list[int] = field(default_factory=list[int])  # of them, those that the rule accepted, in order

    def add(self, before: int, drafted: list[int], kept: list[int]) -> None:
        self.before, self.drafted, self.kept = before, drafted, kept

    def settle(self, request: Request) -> None:
        """Stop conditions are applied after a round is reported to drafters, so the last round is counted afterwards: as
        accepted only what became text."""
        if not self.drafted:
            return
        kept = self.kept[: max(0, len(request.output) - self.before)]
        kept = [position for position in kept if position >= 0]
        self.accepted.update(kept)
        self.rejected.update(position for position in self.drafted if position >= 0)
        self.rejected -= self.accepted
        self.drafted, self.kept = [], []
        request.stats.accepted_prediction_tokens += len(kept)
        request.stats.rejected_prediction_tokens = len(self.rejected)


def placed(
    offers: Sequence[Offer], tokens: Sequence[int], parents: Sequence[int], scored: Sequence[bool]
) -> dict[int, int]:
    """Of the nodes of a verified tree those that were offered, with their positions in the prediction."""
    trie: dict[tuple[int, int], tuple[int, int]] = {}
    for offer in offers:
        at = 0
        for token, position in zip(offer.place.tokens, offer.positions, strict=False):
            at, _ = trie.setdefault((at, token), (len(trie) + 1, position))
    number, found = {0: 0}, dict[int, int]()
    for node in range(1, len(tokens)):
        if scored[node] and (hit := trie.get((number.get(parents[node], -1), tokens[node]))) is not None:
            number[node], found[node] = hit
    return found
