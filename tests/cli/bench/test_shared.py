"""What the measuring commands share: lists of numbers, and a place for the results that is tried before the work."""

import pytest

from draftwood.cli.bench.shared import whole_numbers
from draftwood.errors import OptionError


@pytest.mark.parametrize(("text", "found"), [("4", [4]), ("8, 1,8", [1, 8]), ("16,2", [2, 16])])
def test_numbers_come_each_once_and_in_order(text: str, found: list[int]):
    assert whole_numbers("sizes", text) == found


@pytest.mark.parametrize("text", ["", "0", "1,", "1,-2", "1.5", "many"])
def test_what_is_no_whole_number_is_refused(text: str):
    with pytest.raises(OptionError, match=r"sizes cannot be .*\nhint: whole numbers"):
        whole_numbers("sizes", text)
