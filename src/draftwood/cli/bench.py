"""draftwood bench: checks and measurements, each printed with where it comes from."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from draftwood.cli.questions import gather
from draftwood.errors import OptionError

app = typer.Typer(help="Check exactness and measure costs.", no_args_is_help=True, rich_markup_mode=None)

FEW = 20  # rounds of each kind below which equality shows nothing

Questions = Annotated[Path, typer.Option(help="One JSON question per line, as Spec-Bench has them.")]
Recipes = Annotated[str, typer.Option(help="Names of recipes, separated by commas.")]
Count = Annotated[int, typer.Option(min=1, help="How many questions, spread evenly over the file.")]
MaxTokens = Annotated[int, typer.Option(min=1)]
Model = Annotated[str, typer.Option(help="A model's name or path.")]
Out = Annotated[Path | None, typer.Option(help="Write the results as JSON to this file.")]


def _prompts(loaded: Any, questions: Path, count: int) -> list[tuple[int, ...]]:
    """First turns, through the chat template, spread evenly over the file."""
    asked = gather([], questions)
    for q in asked:
        if q.error is not None:
            print(f"left out: {q.error}", file=sys.stderr)
    asked = [q for q in asked if q.error is None]
    if not asked:
        raise OptionError(f"{questions} holds no question that can be read")
    chosen = spread(asked, count)
    turns = [[{"role": "user", "content": q.turns[0]}] for q in chosen]
    return [tuple(loaded.tokenizer.encode_chat(t)) for t in turns]


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly over the list; all of them, once each, if there are fewer."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def _names(recipes: str) -> list[str]:
    """Recipes that exist, from a list with commas."""
    from draftwood import recipes as known

    names = [name.strip() for name in recipes.split(",") if name.strip()]
    if not names:
        raise OptionError("no recipes are named\nhint: for example --recipes prompt_lookup,auto")
    for name in names:
        known.load(name)
    return names


def _writable(out: Path | None) -> None:
    """Found out before the work, not after it."""
    if out is not None and not out.parent.is_dir():
        raise OptionError(f"{out} cannot be written: there is no folder {out.parent}")


def _console() -> Console:
    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = 200
    return console


def _milestones() -> Callable[[str], None]:
    """Progress without a terminal: one line on stderr whenever another method begins."""
    last = ""

    def say(text: str) -> None:
        nonlocal last
        name = text.partition(":")[0]
        if name != last:
            last = name
            print(f"running {name}", file=sys.stderr, flush=True)

    return say


def _save(out: Path | None, result: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")


@app.command()
def exact(
    questions: Questions,
    recipes: Recipes = "prompt_lookup,speculative_sampling",
    count: Count = 40,
    max_tokens: MaxTokens = 64,
    against: Annotated[str | None, typer.Option(help="Also hold plain decoding against 'transformers'.")] = None,
    temperature: float = 0.0,
    seed: int = 0,
    batch: Annotated[int, typer.Option(min=1, help="Above 1: a ragged batch, crowded and preempted.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32 or float64; float64 allows no near tie.")] = "float32",
    model: Model = "smollm2",
    out: Out = None,
) -> None:
    """Token for token: recipes against plain decoding, plain decoding against transformers."""
    import torch

    from draftwood.bench.exact import Setting, compare
    from draftwood.bench.provenance import provenance
    from draftwood.core.sampling import SamplingParams
    from draftwood.models.load import load

    if dtype not in ("float32", "float64"):
        raise OptionError(f"dtype cannot be {dtype!r}\nhint: float32 or float64")
    _writable(out)
    names = _names(recipes)
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    loaded = load(model, dtype=getattr(torch, dtype))
    setting = Setting(tuple(_prompts(loaded, questions, count)), params, batch, ties=dtype == "float32")
    console, rows = _console(), []
    source = provenance()
    with console.status("starting") as status:
        say = status.update if console.is_terminal else _milestones()
        for row in compare(loaded, names, setting, against=against, say=say):
            rows.append(row)
            _print_partings(console, row)
    rule = " (match where a recipe offers a choice)" if temperature else ""
    table = Table(
        title=f"{len(setting.prompts)} questions, {max_tokens} tokens, temperature {temperature}{rule}, {dtype}",
        box=box.SIMPLE_HEAD,
    )
    for column in ("recipe", "against", "identical", "tokens", "near ties", "wrong", "accepted all/some/none",
                   "tokens/pass", "preempted", "benched"):  # fmt: skip
        table.add_column(column, justify="left" if column in ("recipe", "against") else "right")
    for r in rows:
        table.add_row(
            r.name, r.against, f"{r.identical}/{r.answers}", str(r.compared), str(len(r.near)), str(len(r.wrong)),
            "/".join(map(str, r.rounds)), f"{r.emitted / max(r.passes, 1):.2f}", str(r.preempted), str(r.benched),
        )  # fmt: skip
    console.print(table)
    rounds = [sum(r.rounds[i] for r in rows) for i in range(3)]
    console.print(
        "noisy oracle: knows the plain answers and spoils 3 in 10 tokens, so that every kind of round is seen"
    )
    console.print(f"rounds that accepted all / some / none of their draft: {' / '.join(map(str, rounds))}")
    console.print(json.dumps(source))
    _save(out, {"provenance": source, "rows": [asdict(r) for r in rows]})
    bad = [r.name for r in rows if not r.good]
    if bad:
        console.print(f"NOT EXACT: {', '.join(bad)}")
        raise typer.Exit(1)
    if min(rounds) < FEW:
        console.print(
            f"equal, but it shows little: {FEW} rounds of each kind are wanted\nhint: more questions or tokens"
        )
        raise typer.Exit(3)
    console.print("exact, up to the near ties above" if any(r.near for r in rows) else "exact")


def _print_partings(console: Console, row: Any) -> None:
    for label, found in (("near tie", row.near), ("DIFFERENT", row.wrong)):
        for question, p in found:
            console.print(
                f"{label}: {row.name} against {row.against}, question {question}, token {p.position}: "
                f"{p.tokens[0]} and {p.tokens[1]}, margin {p.margin:.1e}"
            )


@app.command()
def engine(
    questions: Questions,
    recipes: Recipes = "autoregressive,prompt_lookup,speculative_sampling",
    count: Count = 8,
    max_tokens: MaxTokens = 48,
    temperature: float = 0.0,
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,8",
    model: Model = "smollm2",
    out: Out = None,
) -> None:
    """The cost of a round by part, and the share of it that is not the model."""
    from draftwood.bench.engine import measure
    from draftwood.bench.provenance import provenance
    from draftwood.core.sampling import SamplingParams
    from draftwood.core.verdict import PARTS
    from draftwood.models.load import load

    _writable(out)
    names = _names(recipes)
    sizes = [int(b) if b.strip().isdecimal() else 0 for b in batches.split(",")]
    if min(sizes) < 1:
        raise OptionError(f"batches cannot be {batches!r}\nhint: whole numbers, for example 1,8")
    loaded = load(model)
    prompts = _prompts(loaded, questions, count)
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    console, costs = _console(), []
    source = provenance()
    with console.status("starting") as status:
        measure(loaded, names[0], prompts[:1], params, 1)  # warm-up
        for batch in sizes:
            for name in names:
                status.update(f"{name}, batch {batch}")
                costs.append(measure(loaded, name, prompts, params, batch))
    table = Table(title="milliseconds per round", box=box.SIMPLE_HEAD)
    for column in ("recipe", "batch", "rounds", "tokens/pass", *PARTS, "draft passes", "total", "not the model"):
        table.add_column(column, justify="left" if column == "recipe" else "right")
    for c in costs:
        parts = [f"{c.parts[p]:.2f}" for p in PARTS]
        table.add_row(
            c.recipe, str(c.batch), str(c.rounds), f"{c.tokens_per_pass:.2f}", *parts, f"{c.draft:.2f}",
            f"{c.total:.2f}", f"{c.overhead:.1%}",
        )  # fmt: skip
    console.print(table)
    console.print(json.dumps(source))
    _save(out, {"provenance": source, "rows": [{**asdict(c), "overhead": c.overhead} for c in costs]})
