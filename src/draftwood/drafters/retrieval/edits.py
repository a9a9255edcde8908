"""Edits: replacements that an answer made in its prediction, expected again where the same tokens come again.

    prediction    total = 0; total += 1          answer    amount = 0; ...       learned    total -> amount
                             total               drafted               amount, beside the prediction's own token

Renaming a name makes one edit in many places. The first is learned when the answer follows the prediction again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

LONGEST = 16  # tokens of a replaced span, and of what replaced it


@dataclass(slots=True)
class Edit:
    """`new` stood where the prediction has `old`. `trust`: the share of later places where it did, one of each
    kind added."""

    old: tuple[int, ...]
    new: tuple[int, ...]
    made: int = 0
    missed: int = 0

    @property
    def trust(self) -> float:
        return (1 + self.made) / (2 + self.made + self.missed)


@dataclass(slots=True)
class Edits:
    """By the first token of `old`; the newest first."""

    known: dict[int, list[Edit]] = field(default_factory=dict[int, list[Edit]])

    def learn(self, old: Sequence[int], new: Sequence[int]) -> None:
        """A span of the prediction and what the answer has instead: every part of it that was replaced."""
        if not 0 < len(old) <= LONGEST or not 0 < len(new) <= LONGEST:
            return
        for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if kind == "replace":
                found = self.known.setdefault(old[a], [])
                if not any((each.old, each.new) == (tuple(old[a:b]), tuple(new[c:d])) for each in found):
                    found.insert(0, Edit(tuple(old[a:b]), tuple(new[c:d])))

    def at(self, tokens: Sequence[int], start: int) -> Edit | None:
        """The edit that fits the prediction here, the most trusted one."""
        if start >= len(tokens):
            return None
        fitting = [e for e in self.known.get(tokens[start], ()) if tuple(tokens[start : start + len(e.old)]) == e.old]
        return max(fitting, key=lambda each: each.trust, default=None)

    def applied(self, tokens: Sequence[int], start: int, depth: int) -> tuple[list[int], list[int], float]:
        """`depth` tokens from `start` on with all edits that fit, the position of each (-1: not of the prediction), and the
        trust in the first of the edits, 0 if none fits."""
        found: list[int] = []
        positions: list[int] = []
        trust = 0.0
        while len(found) < depth and start < len(tokens):
            edit = self.at(tokens, start)
            if edit is not None and (not trust or edit.trust > 0.5):
                found += edit.new
                positions += [-1] * len(edit.new)
                start += len(edit.old)
                trust = trust or edit.trust
            else:
                found.append(tokens[start])
                positions.append(start)
                start += 1
        return found[:depth], positions[:depth], trust
