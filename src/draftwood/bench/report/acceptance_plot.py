"""Acceptance by depth: one line for each method, one cell for each depth, stronger where more was accepted."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.bench.report.markup import Markup, element
from draftwood.bench.report.svg import ROW, drawing, label_width, row_label, text, titled

CELL = 40.0
# Shares from which on a cell is so strong that its number changes colour: in a dark scheme, in a light one.
MIDDLE, DEEP = 0.63, 0.82


def drafting(found: Mapping[str, Mapping[str, Any]], methods: Sequence[str]) -> list[str]:
    """Methods of which it is known how deep they drafted."""
    return [name for name in methods if found[name]["acceptance_by_position"]]


def acceptance_plot(found: Mapping[str, Mapping[str, Any]], methods: Sequence[str]) -> Markup:
    """Of the rounds that drafted so deep, the share whose accepted path reached that depth."""
    left, deepest = label_width(methods), max(len(found[name]["acceptance_by_position"]) for name in methods)
    drawn = [text(left + CELL * (d + 0.5), 14, str(d + 1), class_="tick", anchor="middle") for d in range(deepest)]
    for place, name in enumerate(methods):
        top = ROW * (place + 1)
        drawn.append(row_label(name, top + ROW / 2))
        for depth, share in enumerate(found[name]["acceptance_by_position"]):
            if share is not None:
                drawn.append(_cell(name, depth, share, left + CELL * depth, top))
    name = "Share of rounds accepted by depth. The table below has the numbers."
    return drawing(left + CELL * deepest, ROW * (len(methods) + 1), name, *drawn, class_="plot fixed")


def _cell(name: str, depth: int, share: float, x: float, y: float) -> Markup:
    box = {"x": x + 1, "y": y + 1, "width": CELL - 2, "height": ROW - 2, "rx": 3}
    strength = "deep middle" if share >= DEEP else "middle" if share >= MIDDLE else None
    shown = text(x + CELL / 2, y + ROW / 2 + 4, f"{100 * share:.0f}", class_=strength, anchor="middle")
    cell = element("g", element("rect", class_="cell", fill_opacity=0.06 + 0.94 * share, **box), shown)
    return titled(cell, f"{name}: {100 * share:.1f} % of the rounds that drafted {depth + 1} deep accepted so deep")
