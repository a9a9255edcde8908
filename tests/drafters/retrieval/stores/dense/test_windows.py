"""Windows hold all that may be drafted, in order and once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from draftwood.drafters.retrieval.stores.build import Piece
from draftwood.drafters.retrieval.stores.dense.windows import Window, windows


def spoken(found: list[Window]) -> list[list[int]]:
    """The texts that the spans make up."""
    texts, here = list[list[int]](), list[int]()
    for window in found:
        for start, stop, ends in window.spans:
            here += window.ids[start:stop].tolist()
            if ends:
                texts.append(here)
                here = []
    assert not here
    return texts


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=9), st.booleans())), st.integers(1, 5))
def test_texts_are_cut_and_nothing_is_lost(parts: list[tuple[list[int], bool]], size: int) -> None:
    found = list(windows([Piece(np.array(ids, dtype=np.int64), ends) for ids, ends in parts], size))
    texts, here = list[list[int]](), list[int]()
    for ids, ends in [*parts, ([], True)]:
        here += ids
        if ends and here:
            texts.append(here)
            here = []
    assert spoken(found) == texts
    assert all(0 < len(window.ids) <= size for window in found)


@given(st.integers(1, 30), st.integers(1, 40), st.data())
def test_of_dialogues_the_answers_are_kept_with_what_came_before_them(
    size: int, count: int, data: st.DataObject
) -> None:
    edges = sorted(data.draw(st.sets(st.integers(0, count), min_size=2, max_size=6)))
    answers = tuple(zip(edges[::2], edges[1::2], strict=False))
    ids = np.arange(100, 100 + count)
    found = list(windows([Piece(ids, answers=answers)], size))
    assert spoken(found) == [ids[start:stop].tolist() for start, stop in answers]
    assert all((window.ids[0] - 100) % size == 0 and len(window.ids) <= size for window in found)


def test_what_follows_the_last_answer_is_not_read() -> None:
    (only,) = windows([Piece(np.arange(50), answers=((10, 20),))], 1024)
    assert len(only.ids) == 20 and only.spans == ((10, 20, True),)
