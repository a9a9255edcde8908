"""draftwood bench edits: predictions that the answer leaves and follows again."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.bench.cells import NONE
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import say
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.options import Device, Dtype, Seed
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.study.edits import Row

RATES_HELP = "Percent of the words of each answer that its prediction has otherwise, separated by commas."
FILE_HELP = "Questions, one JSON object a line, instead of the six that are built in."


def edits(
    recipes: shared.Recipes = "prediction,auto,prompt_lookup,autoregressive",
    rates: Annotated[str, typer.Option(help=RATES_HELP)] = "0,5,15,30",
    questions: Annotated[Path | None, typer.Option(help=FILE_HELP)] = None,
    count: shared.Count = 20,
    max_tokens: shared.MaxTokens = 128,
    temperature: shared.Temperature = 0.0,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
    model: shared.Model = "smollm2",
    out: shared.Out = None,
) -> None:
    """Drafts from a prediction that is not quite the answer.

    The model answers each question plainly. Words and lines of that answer are deleted, inserted and replaced, and the
    result is the prediction with which every recipe answers again. So the answer leaves its prediction and follows it again
    at known rates, and has to stay the same. It stands for editing a text, which a small model cannot be asked for reliably.
    """
    from draftwood.bench.provenance import provenance
    from draftwood.bench.spec.questions import spread
    from draftwood.bench.study.edits import PROMPTS, Setting, measure
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.models.loading.load import load

    shared.writable(out)
    names, shares = shared.recipe_names(recipes), percents(rates)
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    asked = PROMPTS if questions is None else [q.turns[0] for q in spread(shared.read_questions(questions), count)]
    loaded = load(model, dtype=dtype, device=device)
    source = provenance(loaded.info.backend, loaded.info.device)
    found = list(measure(loaded, names, Setting(tuple(asked), tuple(shares), params), say))
    screen = Screen()
    screen.line(f"{len(asked)} questions, {max_tokens} tokens, temperature {temperature:g}, {loaded.info.backend}")
    show(screen, found)
    screen.line(json.dumps(source))
    shared.save(out, {"provenance": source, "rows": [asdict(row) for row in found]})
    if bad := [f"{row.recipe} at {row.rate:.0%}" for row in found if not row.good]:
        screen.line(f"NOT EXACT, or the drafter was disabled: {', '.join(bad)}")
        raise typer.Exit(1)


def percents(text: str) -> list[float]:
    """0,5,15 as shares."""
    try:
        found = [float(word) / 100 for word in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= share <= 1 for share in found):
        raise OptionError(f"rates cannot be {text!r}\nhint: percents from 0 to 100, for example 0,5,15,30")
    return found


def show(screen: Screen, found: "list[Row]") -> None:
    drawn = compact(
        "recipe", "words edited", "tokens per pass", "prediction tokens", "accepted", "rejected",
        "rounds accepting all/some/none", "identical", "near ties", "wrong",
    )  # fmt: skip
    for row in found:
        texts = [f"{row.identical}/{row.answers}", str(len(row.near)), str(len(row.wrong))]
        numbers = [str(row.predicted), str(row.accepted), str(row.rejected), "/".join(map(str, row.rounds))]
        drawn.add_row(
            row.recipe, f"{row.rate:.0%}", f"{row.tokens_per_pass:.2f}", *numbers, *([NONE] * 3 if row.why else texts)
        )
    screen.show(drawn)
    for name, why in {row.recipe: row.why for row in found if row.why}.items():
        screen.line(f"{name}: not compared: {why}")
    screen.line(
        "prediction: the model's own plain answer with so many of its words deleted, inserted or replaced; tokens that\n"
        "were never drafted are neither accepted nor rejected; prompt_lookup and autoregressive use no prediction"
    )
