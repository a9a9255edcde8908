from draftwood.bench.cells import interval, number, percent, rounds, same_text
from draftwood.bench.statistics import Estimate, Ratio


def test_what_is_unknown_is_a_dash():
    assert [number(None, 1), percent(None), interval(None)] == ["-"] * 3


def test_a_value_comes_with_its_interval_if_it_has_one():
    assert interval({"value": 1.5, "low": None, "high": None}) == "1.50"
    assert interval(Ratio(0.101, 0.098, 0.1049, 8), 1, 100) == "10.1 9.8-10.5"
    assert interval(Estimate(1.5, 1.25, 2.0)) == "1.50 1.25-2.00"


def test_rounds_and_equal_texts_are_counted_only_where_there_are_some():
    assert rounds([3, 2, 1]) == "3 / 2 / 1" and rounds([0, 0, 0]) == rounds([]) == "-"
    judged = {"identical": 11, "near_ties": 1, "different": 0}
    assert same_text(judged, lossy=False) == "11/12" and same_text(judged, lossy=True) == "LOSSY"
    assert same_text(dict.fromkeys(judged, 0), lossy=False) == "-"
