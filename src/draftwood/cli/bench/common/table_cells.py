"""The form of printed tables: narrow gaps, and a first column that is never wrapped."""

from rich.table import Table

from draftwood.cli.screen import table


def compact(first: str, *numbers: str) -> Table:
    """A table with narrow gaps whose first column is never wrapped."""
    drawn = table(first, *numbers, numbers=set(numbers))
    drawn.padding = (0, 1, 0, 0)
    drawn.columns[0].no_wrap = True
    return drawn
