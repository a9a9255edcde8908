"""Window: tokens of positions that are not written yet, guessed by the target itself and refined in every pass.

    root   a  b        row 0     the column i of the other rows stands behind the first i tokens of row 0:
           c  d  e     row 1     root c f,  root a d g,  root a b e h
           f  g  h     row 2     Each such path is a branch of a tree, and its position in the text is its depth.

What the target finds most probable behind the branches is the next row. A column of all rows, with the new token at its end,
is a phrase that follows the token before it. Then row 0 is dropped, and the window has moved on by one position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(slots=True)
class Window:
    """`ngram` tokens are one phrase and the token before it. `rows`: `ngram` - 1 of them when the window is full. The first
    row begins longer, because every pass that fills the window moves it by one position."""

    ngram: int
    rows: list[list[int]]

    @staticmethod
    def of(text: Sequence[int], width: int, ngram: int, seed: int) -> "Window":
        """A first row of tokens from the text, in any order."""
        return Window(ngram, [Random(seed).choices(text, k=max(width + ngram - 3, 0))])

    @property
    def full(self) -> bool:
        return len(self.rows) == self.ngram - 1

    def branches(self) -> list[list[int]]:
        """The tokens from the root to the end of each column."""
        first, *others = self.rows
        return [[*first[:i], *(row[i] for row in others)] for i in range(len(first) + 1)]

    def advance(self, root: int, best: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Take in the target's tokens behind the branches. Of a full window the phrases that it holds now, each with the
        token before it."""
        rows = [*self.rows, list(best)]
        if not self.full:
            self.rows = [row[1:] for row in rows]
            return []
        before = [root, *rows[0]]
        self.rows = [rows[1][1:], *rows[2:]]
        return [(key, tuple(row[i] for row in rows[1:])) for i, key in enumerate(before)]


def window_nodes(width: int, ngram: int) -> int:
    """Nodes of the largest pass: of a full window or, where that is narrower than high, of one that is being filled."""
    return max(rows * (width + ngram - 1 - rows) - 1 for rows in range(1, ngram))


def window_depth(width: int, ngram: int) -> int:
    return width + ngram - 3
