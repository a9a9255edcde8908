from draftwood.bench.statistics import Estimate, Ratio
from draftwood.cli.bench.table_cells import interval, number, percent


def test_what_is_unknown_is_a_dash():
    assert [number(None, 1), percent(None), interval(None)] == ["-"] * 3


def test_a_value_comes_with_its_interval_if_it_has_one():
    assert interval({"value": 1.5, "low": None, "high": None}) == "1.50"
    assert interval(Ratio(0.101, 0.098, 0.1049, 8), 1, 100) == "10.1 9.8-10.5"
    assert interval(Estimate(1.5, 1.25, 2.0)) == "1.50 1.25-2.00"
