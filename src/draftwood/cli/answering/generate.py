"""`draftwood generate`: answer prompts, as text or as JSON lines."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli import open_llm, options
from draftwood.cli.answering.answers import Task, as_json, as_text
from draftwood.cli.answering.questions import decoded, gather
from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.screen import Screen, banner
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.core.sampling.params import SamplingParams


@options.with_sampling
def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Each is answered on its own. None: read stdin.")
    ] = None,
    model: options.Model = "smollm2",
    recipe: options.RecipeName = "auto",
    option: options.RecipeOptions = None,
    system: options.System = None,
    file: options.QuestionFile = None,
    prediction: Annotated[
        Path | None,
        typer.Option("--prediction", metavar="FILE", help="A file with the answer you expect, to draft from it."),
    ] = None,
    prediction_text: Annotated[
        str | None, typer.Option("--prediction-text", metavar="TEXT", help="The same as a text.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per answered turn, and nothing else.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also use plain decoding, and show both speeds.")] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    batch: Annotated[
        int,
        typer.Option(
            "--batch", help="With --json: questions answered together. Each then shows its share of the speed."
        ),
    ] = 1,
    batch_invariant: options.BatchInvariant = False,
    trace: options.TraceFile = None,
    quiet: options.Quiet = False,
    color: options.Color = None,
    *,
    params: "SamplingParams",
) -> None:
    """Answer prompts: arguments, stdin, or a file of questions.

    Coloured tokens were drafted and accepted, the others written by the model itself. Drafting changes neither the text at
    temperature 0 nor the distribution above it, except with recipes that are marked LOSSY.
    """
    if batch < 1:
        raise OptionError(f"batch cannot be {batch}\nhint: 1 answers one question after the other")
    if batch > 1 and not json:
        raise OptionError(f"--batch {batch} needs --json: text shows one answer after the other\nhint: add --json")
    if raw and system is not None:
        raise OptionError("a system message needs the chat template\nhint: leave out --system or --raw")
    params = replace(params, prediction=expected(prediction, prediction_text))
    questions = gather(prompts or [], file, raw=raw)
    llm = open_llm.open_llm(
        model,
        recipe,
        dtype=dtype,
        device=device,
        slots=batch,
        options=option or (),
        batch_invariant=batch_invariant,
    )
    if not (json or quiet):
        banner(llm)
    plain = open_llm.twin(llm) if compare else None
    if plain is not None:
        open_llm.warm_up(llm, plain)
    from draftwood.bench.trace.attach import traced

    with traced(llm, trace, option or ()), until_interrupted() as until:
        task = Task(llm, params, until, plain, system, raw)
        good = as_json(task, questions, batch) if json else as_text(task, questions, Screen(color, quiet=quiet))
        if until.is_set():
            raise typer.Exit(STATUS)
    if not good:
        raise typer.Exit(1)


def expected(file: Path | None, text: str | None) -> str | None:
    """The text that answers are expected to be, from a file or as it is; None: there is none."""
    if file is None:
        return text
    if text is not None:
        raise OptionError(f"a prediction is given as a text and in {file}\nhint: choose one")
    try:
        return decoded(file.read_bytes(), str(file))
    except OSError as error:
        raise OptionError(f"{file} cannot be read: {error.strerror or error}") from None
