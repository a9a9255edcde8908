"""A token leaves at the first exit that is sure enough, and thresholds that make no sense are refused."""

import pytest
import torch

from draftwood.errors import OptionError
from draftwood.runners.exits import Exits


def certain(*best: float) -> torch.Tensor:
    """Logits of distributions over four tokens whose best one has this probability."""
    rows = [[p, *[(1 - p) / 3] * 3] for p in best]
    return torch.tensor(rows, dtype=torch.float64).log()


def test_a_token_leaves_where_its_best_token_first_has_more_than_the_threshold() -> None:
    exits = Exits((1, 2, 3), (0.6, 0.5, 0.0))
    said = [certain(0.7, 0.6, 0.3, 0.3), certain(0.3, 0.9, 0.51, 0.5), certain(0.3, 0.3, 0.3, 0.3)]
    assert exits.leave(0, said[0]).tolist() == [True, False, False, False], "as much as the threshold is not more"
    assert exits.leave(1, said[1]).tolist() == [False, True, True, False]
    assert exits.first(said).tolist() == [0, 1, 1, 2]


def test_the_end_of_the_model_holds_nobody_and_what_is_no_number_goes_deeper() -> None:
    exits, nothing = Exits((1, 2), (0.0, 0.0)), torch.full((2, 4), torch.nan)
    assert exits.leave(0, nothing).tolist() == [False, False] and exits.leave(1, nothing).tolist() == [True, True]
    assert exits.leave(0, certain(0.4)).tolist() == [True]
    assert exits.leave(0, certain(0.4)[:0]).tolist() == []


def test_a_threshold_of_one_is_never_passed_so_nobody_asks_there() -> None:
    assert Exits((1, 2, 3), (1.0, 0.5, 0.0)).asked == Exits((2, 3), (0.5, 0.0))
    assert Exits((1, 2, 3), (1.0, 1.0, 0.0)).asked == Exits((3,), (0.0,))
    assert Exits((1, 2), (1.0, 0.0)).leave(0, certain(1.0)).tolist() == [False]


@pytest.mark.parametrize(
    ("layers", "thresholds", "said"),
    [
        ((1, 2, 3), (0.5, 0.0), "there are 3 exits\nhint: one for each, the last one 0"),
        ((1, 2), (0.5, 0.5, 0.0), "there are 2 exits"),
        ((1, 2), (1.5, 0.0), "each from 0 to 1"),
        ((1, 2), (-0.1, 0.0), "each from 0 to 1"),
        ((1, 2), (float("nan"), 0.0), "each from 0 to 1"),
        ((1, 2), (0.5, 0.5), "0 for the last exit"),
        ((2, 1), (0.5, 0.0), "ascending"),
        ((1, 1), (0.5, 0.0), "ascending"),
        ((0, 2), (0.5, 0.0), "ascending"),
        ((), (), "ascending"),
    ],
)
def test_exits_and_thresholds_that_do_not_fit_are_refused(
    layers: tuple[int, ...], thresholds: tuple[float, ...], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        Exits(layers, thresholds)
