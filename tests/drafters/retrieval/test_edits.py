"""What an answer replaced once is expected to be replaced again, as often as it really is."""

import pytest

from draftwood.drafters.retrieval.edits import Edits


def learned(old: list[int], new: list[int]) -> Edits:
    edits = Edits()
    edits.learn(old, new)
    return edits


def test_a_learned_edit_is_applied_wherever_it_fits() -> None:
    edits = learned([5], [7, 8])
    assert edits.applied([1, 5, 2, 5, 3], 0, 9) == ([1, 7, 8, 2, 5, 3], [0, -1, -1, 2, 3, 4], 0.5), "not trusted yet"
    edits.known[5][0].made += 1
    assert edits.applied([1, 5, 2, 5, 3], 0, 9) == ([1, 7, 8, 2, 7, 8, 3], [0, -1, -1, 2, -1, -1, 4], 2 / 3)
    assert edits.applied([1, 5, 2], 0, 2) == ([1, 7], [0, -1], 2 / 3)
    assert edits.applied([1, 2], 0, 9) == ([1, 2], [0, 1], 0.0)


def test_a_span_with_several_edits_teaches_each_of_them() -> None:
    edits = learned([5, 1, 5, 2, 6], [7, 1, 7, 2, 8])
    assert {(e.old, e.new) for found in edits.known.values() for e in found} == {((5,), (7,)), ((6,), (8,))}


def test_of_two_edits_of_a_token_the_trusted_one_is_taken() -> None:
    edits = learned([5], [7])
    edits.learn([5], [8])
    first = edits.at([5], 0)
    assert first is not None and first.new == (8,), "the newest among equals"
    first.missed += 1
    second = edits.at([5], 0)
    assert second is not None and second.new == (7,)


@pytest.mark.parametrize(("old", "new"), [([], [1]), ([1], []), ([1], [1]), ([1] * 17, [2]), ([1], [2] * 17)])
def test_insertions_deletions_and_long_spans_teach_nothing(old: list[int], new: list[int]) -> None:
    assert not learned(old, new).known
