"""Blocks are found by their tokens and by what stands before them, and by nothing else."""

from collections.abc import Callable

import pytest

from draftwood.cache.prefix_tree import Known, PrefixTree
from draftwood.errors import EngineError


def tree() -> PrefixTree:
    """Blocks of two tokens. Two texts begin with block 7; block 3 begins as block 7 does, for another tenant."""
    made = PrefixTree(2)
    for block, above, tokens in ((7, (1,), (4, 5)), (2, 7, (6, 6)), (5, 7, (6, 8)), (9, 2, (1,)), (3, (2,), (4, 5))):
        assert made.add(block, above, tokens) == block
    return made


def test_full_blocks_are_found_behind_their_own_block_only() -> None:
    made = tree()
    assert made.find((1,), [4, 5, 6, 8, 1]) == [7, 5]
    assert made.find((2,), [4, 5, 6, 8]) == [3]
    assert made.find((), [4, 5]) == made.find((1,), [6, 6]) == made.find((1,), [4]) == []


def test_the_nearest_block_agrees_for_longest() -> None:
    made = tree()
    assert made.nearest(7, [6, 8]) == (5, 2) and made.nearest(2, [1, 1]) == (9, 1)
    assert made.nearest(7, [8]) is None and made.nearest(9, [1]) is None


def test_tokens_that_a_block_holds_are_known_once() -> None:
    made = tree()
    assert made.add(8, 7, (6, 6)) == 2
    assert not made.add_end(8, 7, (6,)), "another block begins so"
    assert made.add_end(8, 5, (3,)) and made.nearest(5, [3, 3]) == (8, 1)


def test_a_block_goes_after_those_that_follow_it() -> None:
    made = tree()
    with pytest.raises(EngineError, match="before those that follow"):
        made.remove(2)
    made.remove(9)
    made.remove(2)
    assert made.find((1,), [4, 5, 6, 6]) == [7]


def _lose(made: PrefixTree) -> None:
    del made.known[9]


def _follow_an_end(made: PrefixTree) -> None:
    made.add(11, 9, (1, 1))


def _follow_nothing(made: PrefixTree) -> None:
    made.add(11, 12, (1, 1))


def _too_long(made: PrefixTree) -> None:
    made.add(11, 5, (1, 1, 1))


def _held(made: PrefixTree) -> None:
    made.idle.pop(9)


def _in_a_wrong_order(made: PrefixTree) -> None:
    made.idle.move_to_end(9)


def _other_tokens(made: PrefixTree) -> None:
    made.known[9] = Known(2, (2,))


FAULTS = [_lose, _follow_an_end, _follow_nothing, _too_long, _held, _in_a_wrong_order, _other_tokens]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tree_that_contradicts_itself_is_found(fault: Callable[[PrefixTree], None]) -> None:
    made = tree()
    for block in (9, 2, 5, 7, 3, 11):
        if block in made.known:
            made.idle[block] = None
    made.check(lambda block: False)
    fault(made)
    if 11 in made.known:
        made.idle[11] = None
        made.idle.move_to_end(11, last=False)
    with pytest.raises(EngineError):
        made.check(lambda block: False)
