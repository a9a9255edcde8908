"""Tokens that were run through some parts of a model and not through the others.

    parts          [0, 2)   [2, 4)   [4, 6)
    entries            9        7        4      of one text: its last two tokens left after 2 layers, three others after 4
    waiting before              2        5      by their hidden states

A token that goes deeper takes all waiting ones before it along, in one pass, so no part ever reads an entry that was not
written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

COMMITTED = -1  # the entry of a token that an earlier round has committed


@dataclass(slots=True, eq=False)
class Token:
    """`hidden`: behind the last part that was run. `entries`: staged ones, of each part that was run; as a parent, one that
    was committed before is what a pass calls committed text."""

    id: int
    position: int
    parent: "Token | None"  # None: text that all parts have committed
    hidden: Tensor
    entries: list[int]


@dataclass(slots=True)
class Waiting:
    """Of one slot. `text`: committed by the first part and not by all, oldest first; `staged`: of this round, by the entry
    in the first part; `used`: staged entries of each later part."""

    text: list[Token] = field(default_factory=list[Token])
    staged: dict[int, Token] = field(default_factory=dict[int, Token])
    used: dict[int, int] = field(default_factory=dict[int, int])

    def stage(self, entry: int, parent: int, id: int, position: int, hidden: Tensor) -> Token:
        """A token that the first part has just run."""
        if parent >= 0:
            above = self.staged[parent]
        else:
            above = self.text[-1] if self.text else None
        self.staged[entry] = token = Token(id, position, above, hidden, [entry])
        return token

    def before(self, part: int) -> int:
        """Committed tokens that this part lacks."""
        return sum(len(token.entries) <= part for token in self.text)

    def path(self, token: Token, part: int) -> list[Token]:
        """What this part must run for a token: its ancestors that it lacks, oldest first, and the token itself. All earlier
        parts have run them."""
        found: list[Token] = []
        at: Token | None = token
        while at is not None and len(at.entries) == part:
            found.append(at)
            at = at.parent
        return found[::-1]

    def next_entry(self, part: int) -> int:
        """In part > 0 entries are numbered as tokens come, waiting text first."""
        entry = self.used.get(part, 0)
        self.used[part] = entry + 1
        return entry

    def kept(self, entries: Sequence[int]) -> list[Token]:
        """The text that waits, with these staged tokens behind it."""
        return [*self.text, *(self.staged[entry] for entry in entries)]

    def commit(self, tokens: list[Token], parts: int) -> None:
        """These are text now, and nothing else is left: a rejected token waits for nothing."""
        above: Token | None = None
        self.text = []
        for token in tokens:
            if len(token.entries) < parts:
                token.entries = [COMMITTED] * len(token.entries)
                token.parent = above
                self.text.append(token)
                above = token
        self.staged, self.used = {}, {}


def fresh(tokens: Sequence[Token], part: int) -> tuple[list[int], list[int]]:
    """Entries and ids of the tokens that this part has run since they were last committed."""
    ran: list[Any] = [token for token in tokens if len(token.entries) > part and token.entries[part] != COMMITTED]
    return [token.entries[part] for token in ran], [token.id for token in ran]
