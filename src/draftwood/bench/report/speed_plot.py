"""Tokens per second by method, with intervals: one panel for each task."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.bench.cells import interval
from draftwood.bench.report.markup import Markup, element
from draftwood.bench.report.svg import ROW, axis, drawing, label_width, row_label, text, ticks, titled

WIDTH, VALUE = 400.0, 44.0
PLAIN, FASTER, SLOWER, UNDECIDED = "plain", "faster", "slower", "undecided"
MEANINGS = {
    PLAIN: "plain decoding",
    FASTER: "faster: the interval of its speed-up is above 1",
    SLOWER: "slower: the interval is below 1",
    UNDECIDED: "undecided: the interval holds 1, or there is none",
}


def standing(figures: Mapping[str, Any], *, plain: bool) -> str:
    """What the interval of a method's speed-up says."""
    ratio = figures["speed_up"]
    if plain:
        return PLAIN
    if ratio is None or ratio["low"] is None:
        return UNDECIDED
    return FASTER if ratio["low"] > 1 else SLOWER if ratio["high"] < 1 else UNDECIDED


def speed_panel(title: str, found: Mapping[str, Mapping[str, Any]], methods: Sequence[str], baseline: str) -> Markup:
    """The speeds on one task: `found` holds the figures of each method."""
    left, height = label_width(methods), ROW * len(methods)
    speeds = {name: found[name]["tokens_per_second_interval"] for name in methods}
    marks = ticks(max((s["high"] or s["value"] for s in speeds.values() if s is not None), default=1.0))
    scale = (WIDTH - left - VALUE) / marks[-1]
    drawn = axis(marks, left, scale, height)
    if (plain := speeds.get(baseline)) is not None:
        x = left + plain["value"] * scale
        drawn.append(element("line", x1=x, x2=x, y1=0, y2=height, class_="reference"))
    for place, name in enumerate(methods):
        middle, kind = ROW * (place + 0.5), standing(found[name], plain=name == baseline)
        drawn.append(row_label(name, middle, class_="baseline" if name == baseline else None))
        if (speed := speeds[name]) is None:
            drawn.append(text(left + 4, middle + 4, "no answer", class_="tick"))
            continue
        ratio = interval(found[name]["speed_up"])
        said = f"{name}, {title}: {interval(speed, 1)} tokens per s; speed-up {ratio}; {MEANINGS[kind]}"
        x = left + speed["value"] * scale
        drawn.append(titled(element("g", *_interval(speed, left, scale, middle), marker(kind, x, middle)), said))
        drawn.append(text(WIDTH, middle + 4, f"{speed['value']:.1f}", class_="value", anchor="end"))
    return drawing(
        WIDTH, height + 20, f"Tokens per second by method, {title}. The table below has the numbers.", *drawn
    )


def _interval(speed: Mapping[str, Any], left: float, scale: float, y: float) -> list[Markup]:
    if speed["low"] is None:
        return []
    low, high = left + speed["low"] * scale, left + speed["high"] * scale
    ends = [element("line", x1=x, x2=x, y1=y - 4, y2=y + 4, class_="interval") for x in (low, high)]
    return [element("line", x1=low, x2=high, y1=y, y2=y, class_="interval"), *ends]


def marker(kind: str, x: float, y: float) -> Markup:
    """The standing of a method by form as well as by colour."""
    if kind == UNDECIDED:
        return element("circle", cx=x, cy=y, r=4.5, class_=kind)
    tops = {PLAIN: ((0, -6), (6, 0), (0, 6), (-6, 0)), FASTER: ((5, 0), (-4, 5.5), (-4, -5.5))}
    corners = tops.get(kind, ((-5, 0), (4, 5.5), (4, -5.5)))
    return element("path", d="M" + "L".join(f"{x + a:.2f} {y + b:.2f}" for a, b in corners) + "Z", class_=kind)


def speed_legend() -> Markup:
    entries = []
    for kind, meaning in MEANINGS.items():
        sign = element("svg", marker(kind, 8, 8), viewBox="0 0 16 16", width=16, height=16, aria_hidden="true")
        entries.append(element("li", sign, meaning))
    return element("ul", *entries, class_="legend")
