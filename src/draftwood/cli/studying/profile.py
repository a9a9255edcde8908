"""draftwood profile RECIPE: how often each sibling is accepted, the input of trees of a fixed shape."""

from math import floor
from typing import Annotated

import typer

from draftwood.cli import options
from draftwood.cli.bench.common.progress import quarters
from draftwood.cli.bench.common.shared import Lender, Out, save, writable
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.screen import Screen


def profile(
    recipe: Lender,
    model: options.Model = "smollm2",
    questions: options.Questions = None,
    count: options.Count = 12,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    width: Annotated[int, typer.Option("--width", min=1, max=32, help="Siblings of a node at most.")] = 6,
    depth: Annotated[int, typer.Option("--depth", min=1, max=32, help="Levels of the measured tree.")] = 8,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=255, help="Nodes of the measured tree.")] = 48,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2, help="Tokens of an answer at most.")] = 64,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    seed: options.Seed = 0,
    out: Out = None,
) -> None:
    """Measure the acceptance of the first, second, third .. sibling, from which a tree of a fixed shape is made.

    Without --questions it uses built-in questions, which are in no benchmark.
    """
    writable(out)
    options.sampling(temperature=temperature, top_p=top_p, seed=seed)  # refused before the work

    from draftwood import recipes
    from draftwood.bench.provenance import provenance
    from draftwood.bench.study.rules.sibling_acceptance import measure
    from draftwood.cli.studying.eval import prompts_from
    from draftwood.models.loading.load import load
    from draftwood.trees.best_shape import expected, positional

    recipe = recipes.lender(recipe)
    loaded = load(model, dtype=dtype, device=device)
    asked = prompts_from(loaded, questions, None, None, count)
    limits = {"width": width, "depth": depth, "nodes": nodes, "max_tokens": max_tokens, "seed": seed}
    found = measure(loaded, recipe, asked, temperature=temperature, top_p=top_p, **limits, say=quarters("prompts"))
    screen, siblings = Screen(), range(len(found.tried[0]))
    screen.line(
        f"{recipe} drafts for {model} at temperature {temperature:g}{options.said_top_p(top_p)}: "
        "how often each sibling is the accepted one"
    )
    drawn = compact("depth", "nodes", *(f"sibling {i + 1}" for i in siblings))
    for level, tried in enumerate(found.tried):
        rates = [found.rate(level, i) for i in siblings]
        if not tried[0]:
            break
        drawn.add_row(str(level + 1), str(tried[0]), *("" if r is None else f"{r:.3f}" for r in rates))
    screen.show(drawn)
    # Rounded down, so that their sum stays within 1.
    acceptance = tuple(floor(1000 * rate + 1e-6) / 1000 for rate in found.acceptance())
    acceptance = tuple(rate for rate in acceptance if rate > 0)
    words = ",".join(f"{rate:g}" for rate in acceptance)
    table = [acceptance] * depth
    sizes = {size: expected(positional(acceptance, size, depth), table) for size in (4, 8, 16, 32, 64)}
    screen.line("expected tokens per pass: " + ", ".join(f"{size} nodes {n:.2f}" for size, n in sizes.items()))
    screen.line(f"sequoia:acceptance={words}:nodes=16:depth={depth}:inner={recipe}")
    source = provenance(loaded.info.backend, loaded.info.device)
    given = {"recipe": recipe, "temperature": temperature, "top_p": top_p, "prompts": len(asked)}
    counts = {"tried": found.tried, "kept": found.kept, "acceptance": acceptance, "expected": sizes}
    save(out, {**given, "max_tokens": max_tokens, "seed": seed, **counts, "provenance": source})
