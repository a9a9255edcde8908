"""MeasuringCommand: what all measuring commands do alike with options of another name and with signals."""

import signal
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand

from draftwood.cli.interrupt import handled
from draftwood.cli.screen import report
from draftwood.errors import OptionError

TERMINATED = 143  # 128 + SIGTERM, what a shell expects

# Options that are easily confused: a command has one of each group, and names it where another one is given.
GROUPS = (("--count", "--per-task", "--prompts"), ("--temperature", "--temperatures"), ("--positions", "--rows"))


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived. Handled as Ctrl-C wherever results are kept."""


def terminate(number: int, frame: FrameType | None) -> None:
    """For SIGTERM, so that files and workers are closed as after Ctrl-C."""
    raise Terminated


class MeasuringCommand(TyperCommand):
    """Refuses an option of another command with a hint. SIGTERM ends it with a message and after its workers."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {name: param for param in self.params for name in param.opts}
        for word in args:
            name = word.partition("=")[0]
            group = next((group for group in GROUPS if name in group), ())
            if name not in own and (known := [other for other in group if other in own]):
                hints = "; ".join(f"{other}: {getattr(own[other], 'help', '')}" for other in known)
                raise OptionError(f"{ctx.command_path} has no option {name}\nhint: {hints}")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with handled(terminate, signal.SIGTERM):
                return super().invoke(ctx)
        except Terminated:
            report("stopped by SIGTERM")
            raise typer.Exit(TERMINATED) from None
