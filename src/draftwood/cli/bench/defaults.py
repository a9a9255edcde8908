"""draftwood bench defaults: every recipe without any option against plain decoding, in one table."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from draftwood.cli.bench.shared import MaxTokens, Model, Questions, Threads, recipe_names
from draftwood.cli.bench.spec import (
    Fresh,
    Out,
    Warmup,
    finish,
    heading,
    read_items,
    remarks,
    results_log_of,
    run,
    settings,
)
from draftwood.cli.bench.spec_tables import ALL
from draftwood.cli.bench.table_cells import NONE, compact, interval, number
from draftwood.cli.options import Device, Dtype
from draftwood.cli.screen import Screen
from draftwood.errors import DraftwoodError, OptionError

if TYPE_CHECKING:
    from draftwood.models.loading.load import Loaded

SLOW = 0.9  # speed over plain decoding's below which a recipe is flagged


def defaults(
    questions: Questions,
    recipes: Annotated[str, typer.Option(help="Some recipes, separated by commas; all if left out.")] = "",
    texts: Annotated[
        Path | None, typer.Option(help="A file of texts for recipes that need one, such as fr_spec.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Number of questions, the tasks of the file in turn.")] = 12,
    max_tokens: MaxTokens = 64,
    seed: int = 0,
    threads: Threads = None,
    warmup: Warmup = 3,
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Every recipe without any option at temperature 0: tokens per pass, speed against plain decoding, equal texts.

    All recipes and plain decoding answer each question in turn, in one process. Recipes slower than 0.9 times plain
    decoding are flagged; recipes that need something that is not there are named as left out.
    """
    from draftwood import recipes as known
    from draftwood.bench.spec.questions import in_turn
    from draftwood.bench.spec.run import Plan
    from draftwood.models.loading.load import load

    results_log_of(out, questions)
    names = recipe_names(recipes) if recipes else known.names()
    items = tuple(in_turn(read_items(questions), count))
    methods, left_out = able_recipes(load(model, dtype=dtype, device=device), names, texts)
    if not methods:
        raise OptionError(f"no recipe can be built: {', '.join(left_out)}\nhint: {next(iter(left_out.values()))}")
    chosen = settings(methods, threads, dtype, device, model=model, seed=seed, max_tokens=max_tokens)
    plan = Plan(items, chosen, (), warmup)
    found, source = run(plan, out, questions, fresh=fresh, left_out=left_out)
    screen = Screen()
    screen.line(heading(found, plan))
    screen.show(table(found, plan.methods))
    screen.lines((*verdict(found, plan.methods), *remarks(found, plan), json.dumps(source)))
    finish(found, plan)


def able_recipes(loaded: "Loaded", names: list[str], texts: Path | None) -> tuple[list[str], dict[str, str]]:
    """Names that build for this model, with `texts` where only that is missing; and the reason for each of the others."""
    from draftwood import recipes
    from draftwood.runners.open import runner_of

    target, able, left_out = runner_of(loaded), list[str](), dict[str, str]()
    for name in names:
        tries = [name] if texts is None or "texts" not in recipes.options(name) else [name, f"{name}:texts={texts}"]
        for each in tries:
            try:
                recipes.build(each, target)
            except DraftwoodError as error:
                left_out[name] = str(error).partition("\n")[0].removeprefix(f"{name}: ")
                continue
            able.append(each)
            left_out.pop(name, None)
            break
    return able, left_out


def table(found: dict[str, Any], methods: tuple[str, ...]) -> Table:
    heads = ("tokens per pass", "speed over plain, 95 %", "rounds accepting all / some / none", "identical texts", "")
    drawn = compact("recipe", *heads)
    for name in methods:
        f = found["figures"][ALL][name]
        compared = f["identical"] + f["near_ties"] + f["different"]
        same = "LOSSY" if name in found["lossy"] else f"{f['identical']}/{compared}" if compared else NONE
        rounds = " / ".join(map(str, f["rounds"])) or NONE
        flag = "FAILED" if f["failures"] else "SLOW" if slow(f) else ""
        drawn.add_row(name, number(f["tokens_per_pass"], 2), interval(f["speed_up"]), rounds, same, flag)
    return drawn


def slow(figures: dict[str, Any]) -> bool:
    return figures["speed_up"] is not None and figures["speed_up"]["value"] < SLOW


def verdict(found: dict[str, Any], methods: tuple[str, ...]) -> list[str]:
    """Recipes below SLOW, and recipes that were not measured."""
    flagged = [name for name in methods if slow(found["figures"][ALL][name])]
    said = f"SLOW: below {SLOW:g} times plain decoding: {', '.join(flagged)}"
    return [
        said if flagged else f"no recipe is below {SLOW:g} times plain decoding",
        *(f"left out: {name}: {why}" for name, why in found["left_out"].items()),
    ]
