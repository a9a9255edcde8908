"""draftwood bounds RECIPE: the acceptance of rules on real drafts, and the most that any exact rule can accept."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.bench.cells import interval
from draftwood.cli import open_llm, options
from draftwood.cli.bench.common.progress import say
from draftwood.cli.bench.common.shared import Lender, Out, Temperatures, save, whole_numbers, writable
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.screen import Screen

if TYPE_CHECKING:
    from draftwood.bench.study.rules.bounds import Compared

MOST_SIBLINGS = 64  # the bound takes time that grows quickly with them


def bounds(
    recipe: Lender,
    model: options.Model = "smollm2",
    questions: options.Questions = None,
    count: options.Count = 12,
    positions: Annotated[int, typer.Option(min=1, max=1000, help="Positions of each temperature at most.")] = 96,
    siblings: Annotated[
        str, typer.Option("--siblings", "-k", help="Numbers of siblings, separated by commas.")
    ] = "1,2,4,8",
    temperature: Temperatures = "0.3,0.7,1",
    top_p: options.TopP = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2, help="Tokens of an answer at most.")] = 48,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials at a position where no formula is known.")] = 4,
    option: options.RecipeOptions = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    seed: options.Seed = 0,
    out: Out = None,
) -> None:
    """Compare rules on positions of real answers: acceptance by number of siblings, with the bounds of both draws.

    Without --questions it uses built-in questions, which are in no benchmark. With --out, a figure of the same name (.svg)
    is written where matplotlib is installed.
    """
    writable(out)
    counts = whole_numbers("siblings", siblings, MOST_SIBLINGS)
    temperatures = options.temperatures(temperature, above_zero=True)
    options.sampling(top_p=top_p, seed=seed)  # refused before the work
    chosen = open_llm.recipe_options(recipe, option or ())

    from draftwood.bench.provenance import provenance
    from draftwood.bench.study.rules.bounds import compare, draw, record
    from draftwood.cli.studying.eval import prompts_from
    from draftwood.models.loading.load import load

    loaded = load(model, dtype=dtype, device=device)
    asked = prompts_from(loaded, questions, None, None, count)
    screen, found = Screen(), list["Compared"]()
    sizes: dict[str, Any] = {"top_p": top_p, "positions": positions, "max_tokens": max_tokens, "seed": seed}
    screen.line(
        f"{recipe} drafts for {model}: how often one of k siblings is accepted, 95 % over {len(asked)} prompts"
        f"{options.said_top_p(top_p)}"
    )
    for each in temperatures:
        pairs = record(loaded, recipe, asked, temperature=each, **sizes, say=say, **chosen)
        found.append(compare(pairs, counts, each, trials=trials, seed=seed, say=say))
        show(screen, found[-1])
    source = provenance(loaded.info.backend, loaded.info.device)
    screen.line()
    screen.line(
        "iid: independent draws; distinct: without replacement; *: sampled by running the rule; the others are computed"
    )
    screen.line(json.dumps(source))
    settings: dict[str, Any] = {"recipe": recipe, "options": chosen, "model": model, "trials": trials, "seed": seed}
    save(out, {**settings, "top_p": top_p, "provenance": source, "results": [asdict(each) for each in found]})
    if out is not None and (picture := draw(found, out.with_suffix(".svg"))):
        say(f"figure: {picture}")
    if any(each.above for each in found):
        raise typer.Exit(1)


def show(screen: Screen, found: "Compared") -> None:
    """One temperature as text."""
    counts = list(found.lines[0].kept)
    drawn = compact("rule", "draws", *(f"k = {k}" for k in counts))
    for line in found.lines:
        cells = [interval(line.kept[k]) + ("*" if k in line.sampled else "") for k in counts]
        drawn.add_row(line.name, line.draw, *cells)
    screen.line()
    screen.line(f"temperature {found.temperature:g}, {found.pairs} positions of {found.prompts} prompts")
    screen.show(drawn)
    if found.above:
        screen.line(f"ABOVE ITS BOUND, which cannot be: {', '.join(found.above)}")
    else:
        runs = any(line.sampled for line in found.lines)
        screen.line("no rule exceeds its bound" + (", samples (*) not beyond chance" if runs else ""))
