"""draftwood bench exact: token for token, recipes against plain decoding and plain decoding against transformers."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from draftwood.cli.bench.shared import (
    Count,
    MaxTokens,
    Model,
    Out,
    Questions,
    Recipes,
    milestones,
    open_console,
    read_prompts,
    recipe_names,
    save,
    writable,
)
from draftwood.cli.bench.tables import NONE
from draftwood.cli.options import Dtype
from draftwood.errors import OptionError

FEW = 20  # rounds of each kind below which equality shows nothing


def exact(
    questions: Questions,
    recipes: Recipes = "prompt_lookup,speculative_sampling",
    count: Count = 40,
    max_tokens: MaxTokens = 64,
    against: Annotated[str | None, typer.Option(help="Also hold plain decoding against 'transformers'.")] = None,
    temperature: float = 0.0,
    seed: int = 0,
    batch: Annotated[int, typer.Option(min=1, help="Above 1: a ragged batch, crowded and preempted.")] = 1,
    dtype: Dtype = "auto",
    model: Model = "smollm2",
    out: Out = None,
) -> None:
    """Token for token: recipes against plain decoding, plain decoding against transformers."""
    from draftwood.bench.provenance import provenance
    from draftwood.bench.spec.exact import Setting, compare
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.models.loading.load import load

    writable(out)
    names = recipe_names(recipes)
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    loaded = load(model, dtype=dtype)
    if against is not None and loaded.backend.startswith("int8"):
        raise OptionError(
            f"{against} computes in floats, this model runs in {loaded.backend}\nhint: add --dtype float32"
        )
    setting = Setting(tuple(read_prompts(loaded, questions, count)), params, batch, ties=loaded.near_ties)
    console, rows = open_console(), []
    source = provenance(loaded.backend)
    with console.status("starting") as status:
        say = status.update if console.is_terminal else milestones()
        for row in compare(loaded, names, setting, against=against, say=say):
            rows.append(row)
            _print_partings(console, row)
    rule = " (match where a recipe offers a choice)" if temperature else ""
    table = Table(
        title=f"{len(setting.prompts)} questions, {max_tokens} tokens, temperature {temperature}{rule}, {loaded.backend}",
        box=box.SIMPLE_HEAD,
    )
    for column in ("recipe", "against", "identical", "tokens", "near ties", "wrong", "accepted all/some/none",
                   "tokens/pass", "preempted", "disabled"):  # fmt: skip
        table.add_column(
            column, justify="left" if column in ("recipe", "against") else "right", no_wrap=column == "recipe"
        )
    for r in rows:
        texts = [f"{r.identical}/{r.answers}", str(r.compared), str(len(r.near)), str(len(r.wrong))]
        if r.why:
            texts = [NONE if r.lossless else "LOSSY", NONE, NONE, NONE]
        table.add_row(
            r.name, r.against, *texts,
            "/".join(map(str, r.rounds)), f"{r.emitted / max(r.passes, 1):.2f}", str(r.preempted), str(r.disabled),
        )  # fmt: skip
    console.print(table)
    apart, judged = [r for r in rows if r.why], [r for r in rows if not r.why]
    for r in apart:
        console.print(f"{r.name}: not compared: {r.why}")
    rounds = [sum(r.rounds[i] for r in judged) for i in range(3)]
    console.print(
        "noisy oracle: knows the plain answers and spoils 3 in 10 tokens, so that every kind of round is seen"
    )
    console.print(f"rounds that accepted all / some / none of their draft: {' / '.join(map(str, rounds))}")
    console.print(json.dumps(source))
    save(out, {"provenance": source, "rows": [asdict(r) for r in rows]})
    bad = [r.name for r in judged if not r.good]
    if bad:
        console.print(f"NOT EXACT: {', '.join(bad)}")
    if failed := [r.name for r in apart if not r.good]:
        console.print(f"FAILED: {', '.join(failed)}: the drafter was taken off")
    if bad or failed:
        raise typer.Exit(1)
    if min(rounds) < FEW:
        console.print(
            f"equal, but it shows little: {FEW} rounds of each kind are wanted\nhint: more questions or tokens"
        )
        raise typer.Exit(3)
    ties = ", up to the near ties above" if any(r.near for r in judged) else ""
    # Where somebody was left out, the word must not seem to be about him.
    console.print(f"exact{ties}: {', '.join(r.name for r in judged)}" if apart else f"exact{ties}")


def _print_partings(console: Console, row: Any) -> None:
    for label, found in (("near tie", row.near), ("DIFFERENT", row.wrong)):
        for question, p in found:
            console.print(
                f"{label}: {row.name} against {row.against}, question {question}, token {p.position}: "
                f"{p.tokens[0]} and {p.tokens[1]}, margin {p.margin:.1e}"
            )
