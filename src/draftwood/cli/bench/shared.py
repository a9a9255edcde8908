"""What the measuring commands share: options, questions, and where results go."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from draftwood.bench.spec.tasks import spread
from draftwood.cli.questions import Question, gather
from draftwood.errors import OptionError
from draftwood.option_parsing import converted

Questions = Annotated[Path, typer.Option(help="One JSON question per line, as Spec-Bench has them.")]
Recipes = Annotated[str, typer.Option(help="Recipes, separated by commas; with options: eagle3:depth=7:nodes=60.")]
Count = Annotated[int, typer.Option(min=1, help="How many questions, spread evenly over the file.")]
MaxTokens = Annotated[int, typer.Option(min=1)]
Model = Annotated[str, typer.Option(help="A model's name or path.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=256, help="Threads of everybody; torch's own number if left out.")
]
Out = Annotated[Path | None, typer.Option(help="Write the results as JSON to this file.")]


def read_prompts(loaded: Any, questions: Path, count: int) -> list[tuple[int, ...]]:
    """First turns, through the chat template, spread evenly over the file."""
    chosen = spread(read_questions(questions), count)
    turns = [[{"role": "user", "content": q.turns[0]}] for q in chosen]
    return [tuple(loaded.tokenizer.encode_chat(t)) for t in turns]


def read_questions(file: Path) -> list[Question]:
    """The questions of a file; lines that hold none are left out, and named."""
    asked = gather([], file)
    for q in asked:
        if q.error is not None:
            print(f"left out: {q.error}", file=sys.stderr)
    asked = [q for q in asked if q.error is None]
    if not asked:
        raise OptionError(f"{file} holds no question that can be read")
    return asked


def recipe_names(recipes: str, example: str = "--recipes prompt_lookup,auto") -> list[str]:
    """Recipes that exist, from a list with commas. Options may be lists themselves, of numbers: widths=2,1,1.
    `example`: what to try where none is named."""
    from draftwood import recipes as known

    names = [name.strip(" ,") for name in re.split(r",(?!\s*[\d.])", recipes) if name.strip(" ,")]
    if not names:
        raise OptionError(f"no recipes are named: {recipes!r}\nhint: for example {example}")
    for name in names:
        recipe, words = known.parted(name)
        converted(recipe, known.load(recipe).build, known.options(recipe), words)
    return names


def whole_numbers(name: str, text: str, most: float = float("inf")) -> list[int]:
    """1,2,4 as a list, each once, in order."""
    found = [int(word) if word.strip().isdecimal() else 0 for word in text.split(",")]
    if min(found) < 1:
        raise OptionError(f"{name} cannot be {text!r}\nhint: whole numbers, at least 1, for example 1,8")
    if max(found) > most:
        raise OptionError(f"{name} cannot be {text!r}\nhint: {most:g} at most")
    return sorted(set(found))


def writable(out: Path | None) -> None:
    """Found out before the work, not after it."""
    if out is None:
        return
    if not out.parent.is_dir():
        raise OptionError(f"{out} cannot be written: there is no folder {out.parent}")
    there = out.exists()
    try:
        with out.open("a"):
            pass
        if not there:
            out.resolve().unlink()  # the trial leaves nothing behind; a link stays a link
    except OSError as error:
        raise OptionError(f"{out} cannot be written: {error.strerror or error}") from None


def open_console() -> Console:
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = 200
    return console


def milestones() -> Callable[[str], None]:
    """Progress without a terminal: one line on stderr whenever another method begins."""
    last = ""

    def say(text: str) -> None:
        nonlocal last
        name = text.partition(":")[0]
        if name != last:
            last = name
            print(f"running {name}", file=sys.stderr, flush=True)

    return say


def save(out: Path | None, result: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
