"""Time by part: a bar for each method, milliseconds per token, divided by where the time went."""

from collections.abc import Mapping, Sequence

from draftwood.bench.report.markup import Markup, element
from draftwood.bench.report.svg import ROW, axis, drawing, label_width, row_label, text, ticks, titled
from draftwood.bench.report.time_parts import SECTIONS

WIDTH, VALUE = 760.0, 52.0
SMALL_WIDTH, SMALL_ROW = 220.0, 9.0


def time_plot(times: Mapping[str, Mapping[str, float]], methods: Sequence[str]) -> Markup:
    """`times`: seconds per token by part, for each method."""
    left, height = label_width(methods), ROW * len(methods)
    whole = {name: 1000 * sum(times[name].values()) for name in methods}
    marks = ticks(max(whole.values(), default=1.0), 6)
    scale = (WIDTH - left - VALUE) / marks[-1]
    drawn = axis(marks, left, scale, height)
    for place, name in enumerate(methods):
        top = ROW * place
        drawn.append(row_label(name, top + ROW / 2))
        drawn += _bar(times[name], left, 1000 * scale, top + 3, ROW - 6, f"{name}, ")
        drawn.append(text(WIDTH, top + ROW / 2 + 4, f"{whole[name]:.2f}", class_="value", anchor="end"))
    name = "Milliseconds per token by part and method. The table below has the numbers."
    return drawing(WIDTH, height + 20, name, *drawn, class_="plot wide")


def pair_of_bars(own: Mapping[str, float], plain: Mapping[str, float], scale_to: float) -> Markup:
    """The seconds of one answer, and below it plain decoding's for the same question."""
    scale = SMALL_WIDTH / scale_to if scale_to > 0 else 0.0
    bars = [*_bar(own, 0, scale, 0, SMALL_ROW), *_bar(plain, 0, scale, SMALL_ROW + 3, SMALL_ROW, "plain decoding, ")]
    name = "Where the time went, above: this method, below: plain decoding"
    return drawing(SMALL_WIDTH, 2 * SMALL_ROW + 3, name, *bars, class_="bars")


def _bar(
    parts: Mapping[str, float], left: float, scale: float, y: float, height: float, said: str = ""
) -> list[Markup]:
    """`scale`: pixels of a second."""
    drawn: list[Markup] = []
    for part in SECTIONS:
        if seconds := parts.get(part):
            shape = element("rect", x=left, y=y, width=seconds * scale, height=height, class_=part_class(part))
            drawn.append(titled(shape, f"{said}{part}: {1000 * seconds:.2f} ms"))
            left += seconds * scale
    return drawn


def part_class(part: str) -> str:
    return f"part-{part.replace(' ', '-')}"


def time_legend(parts: Sequence[str]) -> Markup:
    entries = []
    for part in parts:
        sign = element("rect", x=1, y=2, width=14, height=12, rx=2, class_=part_class(part))
        entries.append(
            element("li", element("svg", sign, viewBox="0 0 16 16", width=16, height=16, aria_hidden="true"), part)
        )
    return element("ul", *entries, class_="legend")
