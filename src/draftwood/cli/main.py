"""The command line: `draftwood COMMAND`.

0    done
1    done, but an answer failed, or a comparison that promised the same text (or the same logits) broke its promise
2    refused: an option, a name, a prompt
74   the output could not be written
130  interrupted          141  the reader of the output has closed it
"""

import errno
import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from draftwood._version import __version__
from draftwood.cli import bench, cache
from draftwood.cli.answering.alternatives import alternatives
from draftwood.cli.answering.chat import chat
from draftwood.cli.answering.demo import demo
from draftwood.cli.answering.generate import generate
from draftwood.cli.bench.common.command import MeasuringCommand
from draftwood.cli.interrupt import STATUS
from draftwood.cli.making import datastore, search, train
from draftwood.cli.making.convert_heads import convert
from draftwood.cli.making.expand import expand
from draftwood.cli.papers import papers
from draftwood.cli.screen import report
from draftwood.cli.serve import serve
from draftwood.cli.studying.bounds import bounds
from draftwood.cli.studying.eval import evaluate
from draftwood.cli.studying.explain import explain
from draftwood.cli.studying.profile import profile
from draftwood.cli.studying.replay import replay
from draftwood.cli.studying.simulate import simulate
from draftwood.errors import DraftwoodError

REFUSED, UNWRITTEN, UNREAD = 2, 74, 141
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Commands(TyperGroup):
    """Errors raised on purpose become one message and a status; all others keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DraftwoodError as error:
            report(str(error))
            raise typer.Exit(REFUSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(STATUS) from None
        except OSError as error:
            raise typer.Exit(_output_failed(error)) from None


def _output_failed(error: OSError) -> int:
    """The status after stdout could not be written. Any other error of the system is raised again."""
    broken = isinstance(error, BrokenPipeError)
    if not broken and (error.filename is not None or error.errno not in FULL):
        raise error
    # Python flushes stdout when it ends, which would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if broken:
        return UNREAD
    report(f"the output cannot be written: {error.strerror}\nhint: free space, or write to another place")
    return UNWRITTEN


app = typer.Typer(
    name="draftwood",
    cls=Commands,
    help="Speculative decoding: one engine, published methods as short recipes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: readable anywhere, and no control codes to hide
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (generate, chat, serve, alternatives, papers, convert, expand, demo, replay, explain, simulate):
    app.command()(command)
for name, measuring in {"eval": evaluate, "bounds": bounds, "profile": profile}.items():
    app.command(name, cls=MeasuringCommand)(measuring)
app.add_typer(bench.app, name="bench")
app.add_typer(train.app, name="train")
app.add_typer(datastore.app, name="datastore")
app.add_typer(search.app, name="search")
app.add_typer(cache.app, name="cache")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"draftwood {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", is_eager=True, callback=_version, help="Say which version this is.")
    ] = False,
) -> None:
    """Speculative decoding: one engine, published methods as short recipes."""


def main() -> None:
    """The entry point of the package."""
    if sys.stdout is None:
        sys.exit(_output_failed(OSError(errno.EBADF, "stdout is closed")))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # characters that the encoding lacks are replaced
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        sys.exit(_output_failed(error))
