"""A progress bar on stderr for calls with many prompts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MANY = 20  # prompts; fewer are usually done before a bar would be read


@contextmanager
def progress_bar(total: int, wanted: bool | None = None) -> Iterator[Callable[[int], None]]:
    """A function that moves the bar on by so many. None: a bar for many prompts where stderr is a terminal."""
    if not (wanted if wanted is not None else total > MANY and sys.stderr.isatty()):
        yield lambda done: None
        return
    from rich import progress as rich
    from rich.console import Console

    times = rich.TimeElapsedColumn(), rich.TimeRemainingColumn()
    columns = rich.TextColumn("prompts"), rich.BarColumn(), rich.MofNCompleteColumn(), *times
    with rich.Progress(*columns, console=Console(file=sys.stderr)) as shown:
        task = shown.add_task("", total=total)
        yield lambda done: shown.update(task, advance=done)
