"""A window holds guesses of positions ahead; its branches are what the published mask lets each guess see."""

import random

import pytest

from draftwood.drafters.phrases.window import Window, window_depth, window_nodes

SIZES = [(1, 2), (3, 2), (1, 3), (2, 3), (2, 5), (3, 4), (7, 5)]


@pytest.mark.parametrize(("width", "ngram"), SIZES)
def test_a_window_fills_row_by_row_and_then_keeps_its_size(width: int, ngram: int) -> None:
    rng, window = random.Random(0), Window.of([1, 2, 3], width, ngram, 5)
    largest = deepest = 0
    for turn in range(2 * ngram):
        branches = window.branches()
        nodes = {tuple(branch[: i + 1]) for branch in branches for i in range(len(branch))}
        # Tokens that differ everywhere leave no branch in common, so this counts every place of the window.
        places = len(window.rows[0]) + sum(len(row) for row in window.rows[1:])
        assert len(nodes) <= places <= window_nodes(width, ngram)
        largest, deepest = max(largest, places), max(deepest, *(len(branch) for branch in branches))
        assert window.full == (turn >= ngram - 2)
        if window.full:
            assert [len(row) for row in window.rows] == [width - 1, *[width] * (ngram - 2)]
        made = window.advance(100, [rng.randrange(1000) for _ in branches])
        assert len(made) == (width if turn >= ngram - 2 else 0)
        assert all(len(phrase) == ngram - 1 for _, phrase in made)
    assert (largest, deepest) == (window_nodes(width, ngram), window_depth(width, ngram))


def test_every_guess_sees_what_the_published_mask_shows_it() -> None:
    """Token (row r, column i) sees the root, the first i tokens of row 0 and rows 1 to r of its own column; of row 0 all
    columns up to its own."""
    window = Window(4, [[10, 11], [20, 21, 22], [30, 31, 32]])
    assert window.branches() == [[20, 30], [10, 21, 31], [10, 11, 22, 32]]
    made = window.advance(1, [40, 41, 42])
    assert made == [(1, (20, 30, 40)), (10, (21, 31, 41)), (11, (22, 32, 42))]
    assert window.rows == [[21, 22], [30, 31, 32], [40, 41, 42]]


def test_while_it_fills_every_row_loses_the_position_that_was_written() -> None:
    window = Window(4, [[10, 11, 12, 13]])
    assert window.branches() == [[], [10], [10, 11], [10, 11, 12], [10, 11, 12, 13]]
    assert window.advance(1, [20, 21, 22, 23, 24]) == []
    assert window.rows == [[11, 12, 13], [21, 22, 23, 24]]
    assert window.branches()[1] == [11, 22]
