"""draftwood bench report: pages from results logs, without a new run."""

from pathlib import Path
from typing import Annotated

import typer

from draftwood.cli.bench.common import shared
from draftwood.cli.bench.spec import Html, html_page
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

Logs = Annotated[
    list[Path], typer.Argument(metavar="LOG...", help="Results logs (.jsonl) of bench spec or bench recipes.")
]
TablePage = Annotated[
    Path | None, typer.Option(help="Write the table of recipes, of one log or more, to this file (.md).")
]


def report(logs: Logs, html: Html = None, table: TablePage = None) -> None:
    """A report with plots of one results log, or the table of recipes of several, without a new run."""
    from draftwood.bench.report.page import write_report
    from draftwood.bench.report.recipes_page import recipes_page
    from draftwood.bench.spec.results_log import ResultsLog
    from draftwood.bench.spec.run import Plan

    if html is None and table is None:
        raise OptionError("nothing is to be written\nhint: --html report.html, or --table recipes.md")
    if html is not None and len(logs) > 1:
        raise OptionError(f"--html shows one run, {len(logs)} logs are given\nhint: one page for each log")
    html_page(html)
    if table is not None and table.suffix != ".md":
        raise OptionError(f"{table} is not named as a page of Markdown\nhint: --table {table.with_suffix('.md')}")
    shared.writable(table)
    read, screen = [ResultsLog.load(path) for path in logs], Screen()
    plans = [Plan.of_log(log) for log in read]
    if html is not None:
        write_report(html, plans[0], read[0])
        screen.line(f"report of {len(read[0].done)} questions, {len(plans[0].methods)} methods: {html}")
    if table is not None:
        table.write_text(recipes_page(list(zip(plans, read, strict=True))), encoding="utf-8")
        screen.line(f"table of recipes, from {len(read)} logs: {table}")
