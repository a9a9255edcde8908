"""Blocks belong to the slots that hold them, and come back when the last one lets go."""

import pytest

from draftwood.cache.block_table import FIRST, ZEROS, BlockTable
from draftwood.errors import EngineError, OutOfBlocks


def test_blocks_are_shared_and_given_back() -> None:
    t = BlockTable(slots=2, columns=4, blocks=6)
    first = t.append(0, 3)
    assert first == [2, 3, 4] and t.of(0) == first
    t.share(1, 0, 2)
    t.append(1, 1)
    assert t.of(1) == [2, 3, 5] and t.changed == {0, 1}
    t.check()
    t.cut(0, 0)
    assert t.free == [4] and t.rows[0].tolist() == [ZEROS] * 4
    t.cut(1, 1)
    assert sorted(t.free) == [3, 4, 5] and t.of(1) == [2]
    t.check()


def test_more_than_there_are_is_refused_and_growing_helps() -> None:
    t = BlockTable(slots=1, columns=8, blocks=FIRST + 1)
    with pytest.raises(OutOfBlocks, match="needs 2 blocks, 1 are free"):
        t.append(0, 2)
    t.grow(FIRST + 3)
    assert t.append(0, 3) == [2, 3, 4]
    t.check()


def test_a_block_that_is_lost_is_found() -> None:
    t = BlockTable(slots=1, columns=8, blocks=5)
    t.free.pop()
    with pytest.raises(EngineError, match="neither"):
        t.check()
