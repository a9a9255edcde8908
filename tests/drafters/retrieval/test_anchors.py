"""A text goes on in another one where its end agrees longest, at the nearest place after the cursor."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftwood.drafters.retrieval.anchors import anchors

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def agreement(text: list[int], end: int, tail: list[int]) -> int:
    n = 0
    while n < min(end, len(tail)) and text[end - n - 1] == tail[-n - 1]:
        n += 1
    return n


def brute_force(text: list[int], tail: list[int], cursor: int) -> list[tuple[int, int]]:
    """Every place, by agreement, then at or after the cursor, then distance."""
    found = [(agreement(text, end, tail), end) for end in range(1, len(text) + 1)]
    return sorted([each for each in found if each[0]], key=lambda each: order(each, cursor))


def order(each: tuple[int, int], cursor: int) -> tuple[int, bool, int]:
    return -each[0], each[1] < cursor, abs(each[1] - cursor)


@given(TEXTS, st.lists(st.integers(0, 3), max_size=8), st.integers(0, 30), st.integers(1, 9))
def test_places_are_those_of_a_search_that_looks_at_every_one(
    text: list[int], tail: list[int], cursor: int, most: int
) -> None:
    assert anchors(np.array(text), tail, cursor, most) == brute_force(text, tail, cursor)[:most]


def test_a_search_that_ignores_the_cursor_finds_other_places() -> None:
    text = [1, 2, 3, 1, 2, 4]
    assert anchors(np.array(text), [1, 2], 3, 1) == [(2, 5)] != brute_force(text, [1, 2], 0)[:1]
