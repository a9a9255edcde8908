"""A draft's vocabulary is what the target writes most, with its ends of turns; more rows than tokens are all of them."""

import numpy as np
import pytest

from draftwood.errors import OptionError
from draftwood.train.dialogues import Dialogue
from draftwood.train.vocabulary import counts, coverage, most_frequent

ONE = Dialogue(np.array([5, 5, 5, 1, 2, 2, 7], dtype=np.int32), ((3, 6),))


def test_answers_are_counted_and_prompts_are_not() -> None:
    assert counts([ONE], 9).tolist() == [0, 1, 2, 0, 0, 0, 0, 0, 0]


def test_most_frequent_first_lower_ids_among_equals_and_ends_of_turns_always() -> None:
    total = counts([ONE], 9)
    assert most_frequent(total, 2).tolist() == [1, 2]
    assert most_frequent(total, 3).tolist() == [0, 1, 2]
    assert most_frequent(total, 2, always=(8,)).tolist() == [2, 8]
    assert coverage(total, most_frequent(total, 1)) == pytest.approx(2 / 3)


def test_more_rows_than_tokens_are_all_of_them() -> None:
    assert most_frequent(counts([ONE], 9), 10_000, always=(8,)).tolist() == list(range(9))


def test_no_rows_are_refused() -> None:
    with pytest.raises(OptionError, match="rows cannot be 0"):
        most_frequent(counts([ONE], 9), 0)
