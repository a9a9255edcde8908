"""TextAutomaton: the longest end of any token list that occurs in a text, and where it occurs first.

A suffix automaton. Each state stands for the substrings that end at the same places of the text; its link is the state of
the longest end of them that also ends elsewhere. The text grows token by token, in constant time on average, and so does
the match of a list that goes on behind the text: one step for each token.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TextMatch:
    """The longest match of some list: a state and its number of tokens."""

    state: int = 0
    length: int = 0


@dataclass(slots=True)
class TextAutomaton:
    """State 0 is the empty string."""

    text: list[int] = field(default_factory=list[int])
    _next: list[dict[int, int]] = field(default_factory=lambda: [{}])
    _link: list[int] = field(default_factory=lambda: [-1])
    _length: list[int] = field(default_factory=lambda: [0])  # of the longest substring of a state
    _end: list[int] = field(default_factory=lambda: [0])  # where a state's first occurrence ends, exclusive
    _whole: int = 0  # the state of the whole text

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self._extend(token)

    def _extend(self, token: int) -> None:
        self.text.append(token)
        new = self._state({}, -1, len(self.text), len(self.text))
        at, self._whole = self._whole, new
        while at >= 0 and token not in self._next[at]:
            self._next[at][token] = new
            at = self._link[at]
        if at < 0:
            self._link[new] = 0
            return
        found = self._next[at][token]
        if self._length[found] == self._length[at] + 1:
            self._link[new] = found
            return
        # Only the shorter substrings of `found` end here too: they become a state of their own.
        short = self._state(dict(self._next[found]), self._link[found], self._length[at] + 1, self._end[found])
        self._link[found] = self._link[new] = short
        while at >= 0 and self._next[at].get(token) == found:
            self._next[at][token] = short
            at = self._link[at]

    def _state(self, following: dict[int, int], link: int, length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1

    def end(self) -> TextMatch:
        """The longest end of the text that occurs earlier in it."""
        state = max(self._link[self._whole], 0)
        return TextMatch(state, self._length[state])

    def follow(self, match: TextMatch, tokens: Iterable[int]) -> TextMatch:
        """The longest match after more tokens."""
        state, length = match.state, match.length
        for token in tokens:
            while state > 0 and token not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if token in self._next[state]:
                state, length = self._next[state][token], length + 1
        return self._continued(state, length)

    def _continued(self, state: int, length: int) -> TextMatch:
        """The same, shortened until something follows its first occurrence."""
        while state > 0 and self._end[state] == len(self.text):
            state = self._link[state]
            length = self._length[state]
        return TextMatch(state, length)

    def after(self, match: TextMatch, count: int) -> list[int]:
        """What follows the first occurrence of a match, as far as the text goes; nothing after the empty one."""
        start = self._end[match.state]
        return self.text[start : start + count] if match.state else []
