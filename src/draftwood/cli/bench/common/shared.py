"""What the measuring commands share: options, questions, the start of a measurement, and where results go."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.bench.spec.questions import chat_prompts, spread
from draftwood.cli.answering.questions import Question, gather
from draftwood.cli.bench.common.progress import say
from draftwood.errors import OptionError
from draftwood.option_parsing import converted

if TYPE_CHECKING:
    from draftwood.bench.other_processes import Meter
    from draftwood.models.loading.load import Loaded

MOST_SEQUENCES = 256  # the logits of so many trees of 64 nodes are 3 GB over 49,152 tokens

Questions = Annotated[Path, typer.Option(help="Questions, one JSON object a line, as in Spec-Bench.")]
Recipes = Annotated[str, typer.Option(help="Recipes, separated by commas; with options: eagle3:depth=7:nodes=60.")]
Count = Annotated[int, typer.Option(min=1, help="Number of questions, spread evenly over the file.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")]
Temperature = Annotated[float, typer.Option(help="0 takes the most probable token.")]
Temperatures = Annotated[str, typer.Option("--temperature", "-t", help="Temperatures, separated by commas.")]
LENDER_HELP = "The recipe whose drafter is used; `draftwood papers` lists them."
Lender = Annotated[str, typer.Argument(metavar="RECIPE", help=LENDER_HELP)]
Model = Annotated[str, typer.Option(help="A model's name or path.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=256, help="Threads of every method; torch's default if left out.")
]
Out = Annotated[Path | None, typer.Option(help="Write the results as JSON to this file.")]


def read_prompts(loaded: Any, questions: Path, count: int) -> list[tuple[int, ...]]:
    """First turns, through the chat template, spread evenly over the file."""
    chosen = spread(read_questions(questions), count)
    return [tuple(ids) for ids in chat_prompts(loaded.tokenizer, (q.turns[0] for q in chosen))]


def read_questions(file: Path) -> list[Question]:
    """The questions of a file; lines that hold none are left out and reported."""
    asked = gather([], file)
    for q in asked:
        if q.error is not None:
            say(f"left out: {q.error}")
    asked = [q for q in asked if q.error is None]
    if any(q.tenant is not None or q.predictions is not None for q in asked):
        say("not used here: the tenants and predictions of the questions")
    if not asked:
        raise OptionError(f"{file} holds no question that can be read")
    return asked


def recipe_names(recipes: str, example: str = "--recipes prompt_lookup,auto") -> list[str]:
    """Recipes that exist, from a list with commas. Options may be lists of numbers themselves: widths=2,1,1.
    `example`: for the hint where none is named."""
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
    """Refuse a file that cannot be written before the work, not after it."""
    if out is None:
        return
    try:
        if not out.parent.is_dir():
            raise OptionError(f"{out} cannot be written: there is no folder {out.parent}")
        there = out.exists()
        with out.open("a"):
            pass
        if not there:
            out.resolve().unlink()  # the trial leaves no file; a link stays a link
    except OSError as error:
        raise OptionError(f"{out} cannot be written: {error.strerror or error}") from None


def begin(model: str, dtype: str, device: str, threads: int | None = None) -> "tuple[Loaded, dict[str, Any], Meter]":
    """The model, the provenance of what is measured next, and a meter that is running. Warns where others use the CPU."""
    import torch

    from draftwood.bench import other_processes
    from draftwood.bench.provenance import provenance
    from draftwood.models.loading.load import load

    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load(model, dtype=dtype, device=device)
    start = other_processes.look()
    if warning := other_processes.warning(start):
        say(warning)
    source = provenance(loaded.info.backend, loaded.info.device)
    return loaded, {**source, "machine_at_start": start}, other_processes.Meter(())


def source_lines(source: dict[str, Any]) -> list[str]:
    """The end of every measurement: CPU used by others meanwhile, and the provenance."""
    foreign = source.get("machine_meanwhile", {}).get("foreign_cores")
    said = [] if foreign is None else [f"cores used by other processes: {foreign:.2f} on average"]
    return [*said, json.dumps(source)]


def save(out: Path | None, result: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")
