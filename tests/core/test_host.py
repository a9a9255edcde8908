"""The one door between a device and Python numbers."""

import pytest
import torch

from draftwood.core.host import host, put, read_later, sealed
from draftwood.errors import EngineError


@pytest.mark.parametrize(
    ("numbers", "dtype"), [([1, 2], torch.int64), ([[0.5], [2.0]], torch.float32), ([True, False], torch.bool)]
)
def test_numbers_come_back_as_they_went(numbers: list[object], dtype: torch.dtype) -> None:
    made = put(numbers, "cpu", dtype)
    assert made.dtype == dtype and host(made) == numbers


def test_empty_lists_keep_their_shape() -> None:
    assert put([], "cpu").shape == (0,) and put([[], []], "cpu").shape == (2, 0)


def test_nothing_is_put_on_a_device_where_it_would_be_replayed_without_the_host() -> None:
    with sealed():
        with pytest.raises(EngineError, match="replay"):
            put([1], "cpu")
        with sealed():
            pass
        with pytest.raises(EngineError):
            put([1], "cpu")
        assert host(torch.ones(1)) == [1.0], "reading is counted elsewhere"
    assert put([1], "cpu").tolist() == [1]


def test_a_seal_is_broken_by_whatever_ends_it() -> None:
    with pytest.raises(ValueError, match="inside"), sealed():
        raise ValueError("inside")
    assert put([1], "cpu").tolist() == [1]


def test_numbers_that_are_read_later_are_those_of_now() -> None:
    x, y = torch.arange(4), torch.ones(2)
    later = read_later(x, y)
    x.zero_()
    y.zero_()
    assert later() == [[0, 1, 2, 3], [1.0, 1.0]]
