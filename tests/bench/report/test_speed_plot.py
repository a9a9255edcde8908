import pytest

from draftwood.bench.report.speed_plot import FASTER, PLAIN, SLOWER, UNDECIDED, marker, speed_panel, standing


def figures(low: float | None, high: float | None, speed: float = 10.0) -> dict:
    ratio = {"value": 1.0, "low": low, "high": high}
    return {"speed_up": ratio, "tokens_per_second_interval": {"value": speed, "low": speed - 1, "high": speed + 1}}


@pytest.mark.parametrize(
    ("ends", "kind"),
    [((1.01, 1.2), FASTER), ((0.8, 0.99), SLOWER), ((0.9, 1.1), UNDECIDED), ((None, None), UNDECIDED)],
)
def test_a_method_is_faster_or_slower_only_if_its_whole_interval_is(ends: tuple, kind: str):
    assert standing(figures(*ends), plain=False) == kind and standing(figures(*ends), plain=True) == PLAIN


def test_standings_differ_in_form_and_not_in_colour_alone():
    forms = {marker(kind, 0, 0).replace(kind, "") for kind in (PLAIN, FASTER, SLOWER, UNDECIDED)}
    assert len(forms) == 4


def test_a_panel_has_a_mark_with_its_numbers_for_each_method_and_says_who_has_no_answer():
    found = {"plain": figures(1, 1), "fast": figures(1.1, 1.3, 20), "dead": figures(None, None)}
    found["dead"] |= {"speed_up": None, "tokens_per_second_interval": None}
    drawn = speed_panel("qa, 3 questions", found, ["fast", "plain", "dead"], "plain")
    assert "fast, qa, 3 questions: 20.0 19.0-21.0 tokens per s; speed-up 1.00 1.10-1.30; faster" in drawn
    assert drawn.count('class="interval"') == 6 and drawn.count('class="reference"') == 1 and "no answer" in drawn
