import re

import pytest

from draftwood.bench.report.page import STYLE
from draftwood.bench.report.time_parts import SECTIONS
from draftwood.bench.report.time_plot import pair_of_bars, part_class, time_legend, time_plot


def test_bars_are_as_long_as_their_times():
    drawn = time_plot({"a": {"score": 0.01, "propose": 0.005}, "b": {"score": 0.02}}, ["a", "b"])
    widths = {
        title: float(width)
        for title, width in re.findall(r"<title>([^<]*ms)</title><rect[^>]*? width=\"([\d.]+)", drawn)
    }
    assert widths["a, score: 10.00 ms"] == pytest.approx(2 * widths["a, propose: 5.00 ms"], rel=1e-4)
    assert widths["b, score: 20.00 ms"] == pytest.approx(2 * widths["a, score: 10.00 ms"], rel=1e-4)


def test_the_bars_of_two_answers_share_a_scale():
    drawn = pair_of_bars({"score": 2.0}, {"score": 1.0}, 2.0)
    assert [float(w) for w in re.findall(r'<rect[^>]*? width="([\d.]+)', drawn)] == [220, 110]
    assert "plain decoding, score: 1000.00 ms" in drawn


def test_every_part_has_a_colour():
    assert time_legend(SECTIONS).count("<li>") == len(SECTIONS)
    assert all(f".{part_class(part)} " in STYLE.read_text() for part in SECTIONS)
