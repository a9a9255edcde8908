"""Windows: texts cut to what a target reads at once, with the parts of them that may be drafted.

text        all of it                       a window goes on in the next one, with a context of its own
dialogue    the answers, not the prompts    nobody wants what a user said
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from draftwood.drafters.retrieval.stores.build import Piece


class Span(NamedTuple):
    """Tokens [start, stop) of a window. `ends`: what they are part of ends there."""

    start: int
    stop: int
    ends: bool


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    ids: np.ndarray
    spans: tuple[Span, ...]


def windows(pieces: Iterable[Piece], size: int) -> Iterator[Window]:
    """At most `size` tokens each. A dialogue is one piece."""
    rest = np.zeros(0, np.int64)
    for piece in pieces:
        if piece.answers is not None:
            yield from _dialogue(piece.ids, piece.answers, size)
            continue
        rest = np.concatenate((rest, piece.ids))
        while len(rest) > size:
            yield Window(rest[:size], (Span(0, size, False),))
            rest = rest[size:]
        if piece.ends and len(rest):
            yield Window(rest, (Span(0, len(rest), True),))
            rest = rest[:0]
    if len(rest):
        yield Window(rest, (Span(0, len(rest), True),))


def _dialogue(ids: np.ndarray, answers: Iterable[tuple[int, int]], size: int) -> Iterator[Window]:
    for at in range(0, len(ids), size):
        cut = ((max(start, at) - at, min(stop, at + size) - at, stop <= at + size) for start, stop in answers)
        spans = tuple(Span(*each) for each in cut if each[0] < each[1])
        if spans:
            yield Window(ids[at : at + spans[-1].stop], spans)
