"""Screen: output of commands as text, tables and errors, with colours on a terminal only.

On a terminal, tokens that were drafted and accepted have the colour of their source: green where there is one. A file or a
pipe gets the text byte by byte, without control codes.
"""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from draftwood.llm import LLM
    from draftwood.results import Piece, Result

GREEN, RED, DIM, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"
COLORS = {"green": GREEN, "cyan": "\x1b[36m", "yellow": "\x1b[33m", "magenta": "\x1b[35m", "blue": "\x1b[34m"}
WIDE = 160  # columns of a table in a file, where nothing needs wrapping

# Text of a model must not control the user's terminal; line feed and tab are text.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def wants_color(stream: TextIO, flag: bool | None = None) -> bool:
    """The flag, else NO_COLOR, else whether the stream is a terminal with colours."""
    if flag is not None:
        return flag
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def report(message: str) -> None:
    """An error, on stderr: its first line in red where there are colours."""
    first, _, rest = f"error: {message}".partition("\n")
    first = f"{RED}{first}{PLAIN}" if wants_color(sys.stderr) else first
    print("\n".join(filter(None, (first, rest))), file=sys.stderr, flush=True)


def banner(llm: "LLM") -> None:
    """What the recipe chose for the user, on stderr: a line each. That it is slow was logged as a warning already."""
    from draftwood.sizing.choose_drafter import SLOW

    for note in (each for each in llm.recipe.notes if not each.startswith(SLOW)):
        print(f"[{llm.recipe_name}: {note}]", file=sys.stderr, flush=True)


class Screen:
    """stdout. Opened per command, because tests and shells replace stdout. `quiet` leaves out remarks."""

    def __init__(self, color: bool | None = None, *, quiet: bool = False) -> None:
        self.stream, self.quiet = sys.stdout, quiet
        self.color = wants_color(self.stream, color)
        self.terminal = self.stream.isatty()

    def write(self, text: str, style: str = "") -> None:
        """Text as it is, at once. On a terminal, control characters become visible instead of obeyed."""
        if self.terminal:
            text = CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
        self.stream.write(f"{style}{text}{PLAIN}" if style and self.color and text else text)
        self.stream.flush()

    def line(self, text: str = "", style: str = "") -> None:
        self.write(text, style)
        self.write("\n")

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    def aside(self, text: str) -> None:
        """A remark about an answer: on the terminal below it, else on stderr, so that a file holds answers only."""
        if self.quiet:
            return
        if self.terminal:
            self.line(text, DIM)
        else:
            print(text, file=sys.stderr, flush=True)

    def piece(self, piece: "Piece") -> None:
        """One token of an answer, in the colour of its drafter."""
        styles = [*COLORS.values()]
        self.write(piece.text, styles[piece.source % len(styles)] if piece.source >= 0 else "")

    def legend(self, names: Sequence[str] = ()) -> None:
        """What the colours mean; nothing where there are none. `names`: of the drafters, by number."""
        if not self.color:
            return
        for i, (name, (color, style)) in enumerate(zip(names or ("",), cycle(COLORS.items()), strict=False)):
            self.write(", " if i else "")
            self.write(color, style)
            self.write(f" ({name})" if name else "")
        self.line(": drafted and accepted; uncoloured: written by the model itself")

    def show(self, renderable: Any) -> None:
        """A table, or anything else rich can draw."""
        plain = None if self.terminal else WIDE
        colors = "standard" if self.color else None
        console = Console(
            file=self.stream, force_terminal=self.color, color_system=colors, no_color=not self.color, width=plain
        )
        with console.capture() as drawn:
            console.print(renderable)
        for line in drawn.get().splitlines():
            self.stream.write(line.rstrip() + "\n")
        self.stream.flush()


def table(*columns: str, numbers: frozenset[str] | set[str] = frozenset()) -> Table:
    """A plain table with a line below its head; columns in `numbers` are aligned to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return made


def stats_line(result: "Result", *, cache: bool = False) -> str:
    """One line about one answer."""
    count = result.num_tokens
    parts = [
        f"{count} token{'' if count == 1 else 's'}",
        f"{result.tokens_per_second:.1f} tokens/s",
        f"{result.tokens_per_pass:.2f} tokens per pass",
        f"recipe {result.recipe}",
        *([result.backend] if result.backend else []),
    ]
    if cache:
        parts.append(f"{result.stats.cached_tokens} of {result.num_prompt_tokens} prompt tokens from the cache")
    if len(result.source_names) > 1:
        counts = result.num_tokens_by_source
        parts += [f"{counts[name]} from {name}" for name in dict.fromkeys(result.source_names) if name in counts]
    if not result.lossless:
        parts.append("LOSSY")
    if result.finish_reason == "length":
        full = result.num_prompt_tokens + count
        context = f"cut off: the context is full ({full} tokens)"
        parts.append(context if result.finish_detail == "context" else "cut off at max_tokens")
    if result.finish_reason == "cancelled":
        parts.append("interrupted")
    accepted, rejected = result.stats.accepted_prediction_tokens, result.stats.rejected_prediction_tokens
    if accepted or rejected:
        parts.append(f"{accepted} prediction tokens accepted, {rejected} rejected")
    parts += result.notes
    if result.stats.disabled is not None:
        parts.append(f"the drafter was disabled ({result.stats.disabled})")
    return f"[{', '.join(parts)}]"
