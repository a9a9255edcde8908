"""Cells of printed tables: numbers, shares and ratios with their intervals."""

from typing import Any

from rich.table import Table

from draftwood.cli.screen import table

NONE = "-"


def compact(first: str, *numbers: str) -> Table:
    """A table with narrow gaps whose first column is never wrapped."""
    drawn = table(first, *numbers, numbers=set(numbers))
    drawn.padding = (0, 1, 0, 0)
    drawn.columns[0].no_wrap = True
    return drawn


def number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return NONE if value is None else f"{value * factor:.{digits}f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f}%"


def interval(value: Any, digits: int = 2, factor: float = 1.0) -> str:
    """1.24 0.87-1.46: the value of a Ratio or an Estimate (or its record), and the ends of its interval if it has one."""
    if value is None:
        return NONE
    found = [value[key] if isinstance(value, dict) else getattr(value, key) for key in ("value", "low", "high")]
    middle, low, high = (number(x, digits, factor) for x in found)
    return middle if found[1] is None else f"{middle} {low}-{high}"
