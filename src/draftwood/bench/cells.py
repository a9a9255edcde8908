"""Cells of tables as text: numbers, shares and ratios with their intervals. For the screen, for pages and for reports."""

from typing import Any

NONE = "-"


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


def rounds(counts: list[int]) -> str:
    """3 / 2 / 1: rounds that accepted all, some and none of their draft."""
    return " / ".join(map(str, counts)) if any(counts) else NONE


def same_text(figures: dict[str, Any], lossy: bool) -> str:
    """12/12: answers equal to plain decoding's of those that were compared."""
    compared = figures["identical"] + figures["near_ties"] + figures["different"]
    return "LOSSY" if lossy else f"{figures['identical']}/{compared}" if compared else NONE
