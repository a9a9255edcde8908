"""How often every run of tokens occurs in several sequences, and what usually follows: the records, and the index in plain
Python. It gives what the compiled one gives (`cpu/suffix_index.py`), slower, and serves where there is no compiler.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DraftRule:
    """How much is drafted: after `match` tokens that occurred before, at most floor(factor * match + offset) and `nodes`
    tokens, `levels` of them on one path, each with a path probability of at least `p_min`.

    tree False: the most frequent continuation. True: the most probable tokens of all continuations.
    """

    nodes: int
    levels: int
    factor: float = 1.0
    offset: float = 0.0
    p_min: float = 0.1
    tree: bool = False

    def budget(self, match: int) -> int:
        return max(0, math.floor(min(self.nodes, self.factor * match + self.offset)))


@dataclass(frozen=True, slots=True)
class SuffixDraft:
    """Tokens in the order of drafting; parents count the root as 0, so node i is tokens[i - 1]."""

    tokens: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    probs: list[float] = field(default_factory=list[float])  # of the path to each token, as counted
    score: float = 0.0  # the sum of `probs`: expected accepted tokens
    match: int = 0  # tokens of the context that were found


class SuffixIndex(Protocol):
    """Counts of all runs of at most `depth` tokens. Sequences have numbers; a new number begins a new one."""

    def append(self, sequence: int, tokens: Sequence[int]) -> None: ...
    def remove(self, sequence: int) -> None:
        """As if it had never been there. Nothing happens if it is not."""
        ...

    def count(self, tokens: Sequence[int]) -> int:
        """Occurrences of a run in all sequences; 0 if it is longer than the depth."""
        ...

    def draft(self, context: Sequence[int], rule: DraftRule) -> SuffixDraft:
        """The draft with the highest score over all lengths of match, the longer match among equals."""
        ...


_Occurrences = list[tuple[list[int], int]]  # a text and the position behind the run


@dataclass(slots=True)
class PlainIndex:
    """Keeps the texts and looks up where the last token occurs: a draft visits every occurrence."""

    depth: int
    texts: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    places: dict[int, dict[int, list[int]]] = field(default_factory=dict[int, dict[int, list[int]]])

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        text = self.texts.setdefault(sequence, [])
        for token in tokens:
            text.append(token)
            self.places.setdefault(token, {}).setdefault(sequence, []).append(len(text))

    def remove(self, sequence: int) -> None:
        for token in set(self.texts.pop(sequence, ())):
            del self.places[token][sequence]
            if not self.places[token]:
                del self.places[token]

    def count(self, tokens: Sequence[int]) -> int:
        if not 0 < len(tokens) <= self.depth:
            return 0
        found = self._ending_with(tokens[-1])
        for i in range(2, len(tokens) + 1):
            found = _preceded(found, i, tokens[-i])
        return len(found)

    def draft(self, context: Sequence[int], rule: DraftRule) -> SuffixDraft:
        best, draft = SuffixDraft(), _branches if rule.tree else _path
        found: _Occurrences = self._ending_with(context[-1]) if context else []
        for match in range(1, min(self.depth, len(context)) + 1):
            found = found if match == 1 else _preceded(found, match, context[-match])
            if not found:
                break
            made = draft(found, match, rule, min(rule.levels, self.depth - match))
            if made.tokens and made.score >= best.score:
                best = made
        return best

    def _ending_with(self, token: int) -> _Occurrences:
        return [(self.texts[s], end) for s, ends in self.places.get(token, {}).items() for end in ends]


def _preceded(found: _Occurrences, size: int, token: int) -> _Occurrences:
    return [(text, end) for text, end in found if end >= size and text[end - size] == token]


def _followed(found: _Occurrences) -> list[tuple[int, int]]:
    """(count, next token), the most frequent first, the lowest token first among equals."""
    counts = Counter(text[end] for text, end in found if end < len(text))
    return sorted(((n, token) for token, n in counts.items()), key=lambda each: (-each[0], each[1]))


def _after(found: _Occurrences, token: int) -> _Occurrences:
    return [(text, end + 1) for text, end in found if end < len(text) and text[end] == token]


def _path(found: _Occurrences, match: int, rule: DraftRule, levels: int) -> SuffixDraft:
    tokens: list[int] = []
    probs: list[float] = []
    prob = 1.0
    for _ in range(min(rule.budget(match), levels)):
        after = _followed(found)
        if not after:
            break
        count, token = after[0]
        prob *= count / len(found)
        if prob < rule.p_min:
            break
        tokens.append(token)
        probs.append(prob)
        found = _after(found, token)
    return SuffixDraft(tokens, list(range(len(tokens))), probs, _total(probs), match)


def _branches(found: _Occurrences, match: int, rule: DraftRule, levels: int) -> SuffixDraft:
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    heap: list[tuple[float, int, int, int, int, Callable[[], _Occurrences]]] = []
    order = 0

    def grow(found: _Occurrences, prob: float, parent: int, level: int) -> None:
        nonlocal order
        for count, token in _followed(found) if level < levels else ():
            own = prob * (count / len(found))
            if own >= rule.p_min:
                heapq.heappush(heap, (-own, order, token, parent, level + 1, lambda t=token: _after(found, t)))
                order += 1

    grow(found, 1.0, 0, 0)
    while heap and len(tokens) < rule.budget(match):
        prob, _, token, parent, level, after = heapq.heappop(heap)
        tokens.append(token)
        parents.append(parent)
        probs.append(-prob)
        grow(after(), -prob, len(tokens), level)
    return SuffixDraft(tokens, parents, probs, _total(probs), match)


def _total(probs: list[float]) -> float:
    """Added one after another: `sum` rounds differently since Python 3.12."""
    total = 0.0
    for prob in probs:
        total += prob
    return total
