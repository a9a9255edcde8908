"""N-grams: how often a token followed the last few tokens of a draft, in a store of texts or in the request's own text.

r(v) = sum over n of w_n * count(last n - 1 tokens, v) / count(last n - 1 tokens)        n = 2 .. 6
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from draftwood.drafters.retrieval.stores.counts import followers
from draftwood.drafters.retrieval.stores.store import Store

WEIGHTS = 0.01, 0.04, 0.15, 0.18, 0.12  # of bigrams to 6-grams, as published
LONGEST = len(WEIGHTS)  # tokens of the longest context


class Counts(Protocol):
    """Where n-grams are counted."""

    @property
    def small(self) -> bool:
        """Whether a token that never followed a context may well do so: one text says less than a corpus."""
        ...

    def after(self, text: Sequence[int], span: int, tokens: Sequence[int], drafted: int = 0) -> tuple[int, list[int]]:
        """How often the last `span` tokens of `text` occur, and how often each of `tokens` follows them. `drafted`: so many
        tokens at the end of `text` are a draft."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StoreCounts:
    """In a datastore of texts."""

    store: Store
    small: bool = False

    def after(self, text: Sequence[int], span: int, tokens: Sequence[int], drafted: int = 0) -> tuple[int, list[int]]:
        return followers(self.store, text[-span:], tokens)


@dataclass(slots=True)
class TextCounts:
    """In one text that grows, and in the draft behind it."""

    small: bool = True
    size: int = 0  # tokens read
    _tail: list[int] = field(default_factory=list[int])
    _after: dict[tuple[int, ...], Counter[int]] = field(default_factory=dict[tuple[int, ...], Counter[int]])

    def read(self, tokens: Sequence[int]) -> None:
        """The next tokens of the text."""
        text, known = [*self._tail, *tokens], len(self._tail)
        for at in range(known, len(text)):
            for span in range(1, min(LONGEST, at) + 1):
                self._after.setdefault(tuple(text[at - span : at]), Counter())[text[at]] += 1
        self.size += len(tokens)
        self._tail = text[-LONGEST:]

    def after(self, text: Sequence[int], span: int, tokens: Sequence[int], drafted: int = 0) -> tuple[int, list[int]]:
        context, size = tuple(text[-span:]), len(text)
        seen = self._after.get(context, {})
        own = [text[i] for i in range(max(size - drafted, span), size) if tuple(text[i - span : i]) == context]
        return sum(seen.values()) + len(own), [seen.get(token, 0) + own.count(token) for token in tokens]


def mixture(
    counts: Counts,
    text: Sequence[int],
    tokens: Sequence[int],
    drafted: int = 0,
    weights: Sequence[float] = WEIGHTS,
) -> tuple[list[float], float]:
    """r of each token after `text`, and the sum of the weights whose contexts occur."""
    r, known = [0.0] * len(tokens), 0.0
    for span, weight in enumerate(weights, 1):
        total, found = counts.after(text, span, tokens, drafted) if span <= len(text) else (0, [])
        if not total:  # a longer context does not occur either
            break
        known += weight
        r = [have + weight * count / total for have, count in zip(r, found, strict=True)]
    return r, known
