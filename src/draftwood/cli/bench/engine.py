"""draftwood bench engine: the cost of a round by part."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from draftwood.cli.bench.shared import (
    Count,
    MaxTokens,
    Model,
    Out,
    Questions,
    Recipes,
    open_console,
    read_prompts,
    recipe_names,
    save,
    whole_numbers,
    writable,
)
from draftwood.cli.options import Dtype


def engine(
    questions: Questions,
    recipes: Recipes = "autoregressive,prompt_lookup,speculative_sampling",
    count: Count = 8,
    max_tokens: MaxTokens = 48,
    temperature: float = 0.0,
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,8",
    nodes: Annotated[
        str, typer.Option(help="Also trees of so many nodes that cost nothing to draft, separated by commas.")
    ] = "16",
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    out: Out = None,
) -> None:
    """The cost of a round by part, and the share of it that is not the model."""
    from draftwood.bench.micro.engine import measure, replay
    from draftwood.bench.provenance import provenance
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.core.verdict import PARTS
    from draftwood.models.loading.load import load

    writable(out)
    names = recipe_names(recipes)
    sizes, trees = whole_numbers("batches", batches), whole_numbers("nodes", nodes) if nodes else []
    loaded = load(model, dtype=dtype)
    prompts = read_prompts(loaded, questions, count)
    params = SamplingParams(temperature=temperature, seed=0, max_tokens=max_tokens)
    console, costs = open_console(), []
    source = provenance(loaded.backend)
    with console.status("starting") as status:
        measure(loaded, names[0], prompts[:1], params, 1)  # warm-up
        for batch in sizes:
            for name in names:
                status.update(f"{name}, batch {batch}")
                costs.append(measure(loaded, name, prompts, params, batch))
            for count in trees:
                status.update(f"known text, {count} nodes, batch {batch}")
                recipe = replay(loaded, prompts, params, count)
                costs.append(measure(loaded, recipe, prompts, params, batch, f"known text, {count} nodes"))
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
    save(out, {"provenance": source, "rows": [{**asdict(c), "overhead": c.overhead} for c in costs]})
