import pytest

from draftwood.bench.report.svg import label_width, row_label, ticks


@pytest.mark.parametrize(
    ("most", "marks"),
    [(62.1, [0, 20, 40, 60, 80]), (1.0, [0, 0.25, 0.5, 0.75, 1]), (0.004, [0, 0.001, 0.002, 0.003, 0.004])],
)
def test_ticks_are_round_and_reach_the_largest_value(most: float, marks: list[float]):
    assert ticks(most) == pytest.approx(marks)


@pytest.mark.parametrize("most", [0.0, -1.0, float("inf"), float("nan")])
def test_nothing_to_show_still_has_an_axis(most: float):
    assert ticks(most) == [0.0, 1.0]


def test_a_long_name_is_cut_and_whole_below_the_pointer():
    name = "sequoia:acceptance=0.604,0.137,0.056:nodes=16"
    drawn = row_label(name, 10)
    assert f"<title>{name}</title>" in drawn and f">{name}</text>" not in drawn and "…</text>" in drawn
    assert label_width([name]) < label_width(["x" * 5]) * 5
