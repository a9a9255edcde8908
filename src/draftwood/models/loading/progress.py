"""A progress bar on stderr while a large model is packed for the first time."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOWN = 128 << 20  # bytes; fewer are packed before a bar would be read


@contextmanager
def packing(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that is told of every so many bytes packed. Without a terminal it shows nothing."""
    if total < SHOWN or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich import progress as rich
    from rich.console import Console

    columns = rich.TextColumn("first start: packing {task.description}"), rich.BarColumn(), rich.DownloadColumn()
    with rich.Progress(*columns, rich.TimeRemainingColumn(), console=Console(file=sys.stderr), transient=True) as shown:
        task = shown.add_task(name, total=total)
        yield lambda done: shown.update(task, advance=done)
