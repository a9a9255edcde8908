"""The command line: `draftwood COMMAND`.

    0    done
    1    done, but an answer failed, or a comparison that promised the same text (or the same logits) broke its promise
    2    refused: an option, a name, a prompt
    130  interrupted          141  nobody reads our output any more

Here are the commands' names and what happens when something goes wrong.
"""

import importlib
import importlib.util
import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from draftwood._version import __version__
from draftwood.cli.bench.command import MeasuringCommand
from draftwood.cli.bounds import bounds
from draftwood.cli.chat import chat
from draftwood.cli.convert_heads import convert
from draftwood.cli.demo import demo
from draftwood.cli.eval import evaluate
from draftwood.cli.generate import generate
from draftwood.cli.interrupt import STATUS
from draftwood.cli.papers import papers
from draftwood.cli.profile import profile
from draftwood.cli.screen import report
from draftwood.errors import DraftwoodError

REFUSED, UNREAD = 2, 141


class Commands(TyperGroup):
    """Errors we raise on purpose become one message and a status; all others keep their traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DraftwoodError as error:
            report(str(error))
            raise typer.Exit(REFUSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(STATUS) from None
        except BrokenPipeError:
            _close_stdout()
            raise typer.Exit(UNREAD) from None


def _close_stdout() -> None:
    """Python flushes stdout when it ends; into a closed pipe that would be one more error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
for command in (generate, chat, papers, convert, demo):
    app.command()(command)
for name, measuring in {"eval": evaluate, "bounds": bounds, "profile": profile}.items():
    app.command(name, cls=MeasuringCommand)(measuring)
for name in ("bench", "train"):  # sub-apps in files of their own, which import nothing heavy before a command needs it
    if importlib.util.find_spec(f"draftwood.cli.{name}") is not None:
        app.add_typer(importlib.import_module(f"draftwood.cli.{name}").app, name=name)


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


def calm_threads() -> None:
    """Let idle threads of a product sleep soon, unless the user has said how long they should spin.

    A thread that spins while its partner waits for a core makes a pass ten times slower on a busy machine. Read when torch
    is loaded, so this comes first.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "30000")


def main() -> None:
    """The entry point of the package."""
    calm_threads()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a letter shows a substitute
            stream.reconfigure(errors="replace")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()
        sys.exit(UNREAD)
