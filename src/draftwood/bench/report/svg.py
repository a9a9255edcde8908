"""Parts that all plots share: the drawing with its name, text, axes, and labels that are cut where they are too long.

Colours are classes of the style sheet, so that a plot follows the reader's light or dark scheme. A mark carries its
numbers as a <title>, which browsers show below the pointer; the same numbers stand in a table below each plot.
"""

import math
from collections.abc import Sequence

from draftwood.bench.report.markup import Markup, element

ROW = 22.0  # height of a line of a plot
CHARACTER = 7.2  # width of a character of 12 px, bold
LABEL = 170.0  # the widest label


def drawing(width: float, height: float, name: str, *parts: str, class_: str = "plot") -> Markup:
    """A plot. For a screen reader it is one image with a name."""
    view = f"0 0 {width:.6g} {height:.6g}"
    size = {"width": width, "height": height}
    return element("svg", *parts, viewBox=view, class_=class_, role="img", aria_label=name, focusable="false", **size)


def text(x: float, y: float, said: str, *, class_: str | None = None, anchor: str | None = None) -> Markup:
    return element("text", said, x=x, y=y, class_=class_, text_anchor=anchor)


def titled(shape: Markup, said: str) -> Markup:
    """A mark that says its numbers when the pointer is over it."""
    return element("g", element("title", said), shape, class_="mark")


def label_width(labels: Sequence[str]) -> float:
    return min(LABEL, max((len(label) for label in labels), default=0) * CHARACTER) + 8


def row_label(label: str, middle: float, *, class_: str | None = None) -> Markup:
    """The name of a line, cut to its place."""
    most = int(LABEL / CHARACTER)
    cut = label if len(label) <= most else label[: most - 1] + "…"
    return titled(text(0, middle + 4, cut, class_=class_), label)


def ticks(most: float, count: int = 4) -> list[float]:
    """About `count` round numbers from 0 on; the last is not below `most`."""
    if not (most > 0 and math.isfinite(most)):
        return [0.0, 1.0]
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [step * i for i in range(math.ceil(most / step - 1e-9) + 1)]


def axis(marks: Sequence[float], left: float, scale: float, height: float) -> list[Markup]:
    """Vertical lines at the marks, and their numbers below."""
    drawn = []
    for mark in marks:
        x = left + mark * scale
        drawn.append(element("line", x1=x, x2=x, y1=0, y2=height, class_="grid"))
        drawn.append(text(x, height + 14, f"{mark:g}", class_="tick", anchor="middle"))
    return drawn
