"""draftwood bench recipes: every recipe without options against plain decoding, in the table of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from draftwood.cli.bench.common.shared import MaxTokens, Model, Questions, Temperatures, Threads, recipe_names, writable
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.bench.spec import (
    Fresh,
    PerTask,
    Warmup,
    finish,
    heading,
    read_items,
    remarks,
    results_log_of,
    run,
    settings,
)
from draftwood.cli.options import Device, Dtype
from draftwood.cli.options import temperatures as temperatures_of
from draftwood.cli.screen import Screen
from draftwood.errors import DraftwoodError, OptionError

if TYPE_CHECKING:
    from draftwood.bench.spec.run import Plan
    from draftwood.models.loading.load import Loaded

Files = list[Path] | None
Texts = Annotated[
    Files,
    typer.Option(exists=True, help="A file of texts for recipes that need one, such as fr_spec. May be repeated."),
]
Stores = Annotated[
    Files, typer.Option(exists=True, help="A store for recipes that need one, such as rest. May be repeated.")
]
Weights = Annotated[
    Files, typer.Option(exists=True, help="Weights for recipes without shipped ones, such as hydra. May be repeated.")
]
Page = Annotated[
    Path | None, typer.Option(help="Write the table to this file (.md); logs of the same name let a run continue.")
]


def recipes(
    questions: Questions,
    recipes: Annotated[str, typer.Option(help="Some recipes, separated by commas; all if left out.")] = "",
    texts: Texts = None,
    store: Stores = None,
    weights: Weights = None,
    per_task: PerTask = 5,
    max_tokens: MaxTokens = 64,
    temperature: Temperatures = "0,1",
    seed: int = 0,
    threads: Threads = None,
    warmup: Warmup = 3,
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Page = None,
    fresh: Fresh = False,
) -> None:
    """Every recipe without options, greedy and at temperature 1, beside its paper's claim: the table of results.

    All recipes and plain decoding answer each question in turn, in one process. A recipe that cannot do without a store,
    texts or weights gets those that are given, if they fit; recipes that still lack something are named with the reason.
    """
    from draftwood import recipes as known
    from draftwood.bench.report.recipes_page import recipes_page
    from draftwood.bench.spec.questions import choose
    from draftwood.bench.spec.results_log import ResultsLog
    from draftwood.bench.spec.run import Plan
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.models.loading.load import load

    writable_page(out, questions)
    temperatures = temperatures_of(temperature)
    logs = {each: log_file(out, each) for each in temperatures}
    for each in temperatures:
        SamplingParams(temperature=each, seed=seed, max_tokens=max_tokens)  # refused here, not in a worker
        results_log_of(logs[each], questions)
    names = recipe_names(recipes) if recipes else known.names()
    items = tuple(choose(read_items(questions), per_task))
    files = {"texts": texts or [], "store": store or [], "weights": weights or []}
    able, left_out = able_recipes(load(model, dtype=dtype, device=device), names, files)
    if not able:
        raise OptionError(f"no recipe can be built: {', '.join(left_out)}\nhint: {next(iter(left_out.values()))}")
    runs, screen = list[tuple[Plan, dict[str, Any]]](), Screen()
    for each in temperatures:
        sampling: dict[str, Any] = {"temperature": each, "seed": seed, "max_tokens": max_tokens}
        methods = [with_own_rule(name, each) for name in able]
        plan = Plan(items, settings(methods, threads, dtype, device, model=model, **sampling), (), warmup)
        found, _ = run(plan, logs[each], questions, fresh=fresh, left_out=left_out)
        runs.append((plan, found))
        show(screen, plan, found)
    if out is not None:
        read = [ResultsLog.load(log.with_suffix(".jsonl")) for log in logs.values() if log is not None]
        out.write_text(recipes_page([(plan, log) for (plan, _), log in zip(runs, read, strict=True)]), encoding="utf-8")
        screen.line(f"table: {out}")
    for plan, found in runs:
        finish(found, plan)


def writable_page(out: Path | None, questions: Path) -> None:
    """Refuses a page that cannot be written, or that is not named as one."""
    if out is not None and out.suffix != ".md":
        raise OptionError(f"{out} is not named as a page of Markdown\nhint: --out {out.with_suffix('.md')}")
    if out is not None and out.resolve() == questions.resolve():
        raise OptionError(f"{out} would overwrite the questions\nhint: another name for --out")
    writable(out)


def log_file(out: Path | None, temperature: float) -> Path | None:
    """Where the results of one temperature go: recipes.md has recipes-temperature-0.json, with its log beside it."""
    return None if out is None else out.with_name(f"{out.stem}-temperature-{temperature:g}.json")


def able_recipes(
    loaded: "Loaded", names: Sequence[str], files: Mapping[str, Sequence[Path]]
) -> tuple[list[str], dict[str, str]]:
    """Names that build for this model, with a file only where they do not build without one; and the reason for each of the
    others. `files`: by option."""
    from draftwood import recipes
    from draftwood.runners.open import runner_of

    target, able, left_out = runner_of(loaded), list[str](), dict[str, str]()
    for name in names:
        known = recipes.options(name)
        tries = {f"{name}:{key}={file}": file for key, found in files.items() if key in known for file in found}
        reasons = list[str]()
        for each in (name, *tries):
            try:
                recipes.build(each, target)
            except DraftwoodError as error:
                why = str(error).partition("\n")[0].removeprefix(f"{name}: ")
                reasons.append(f"{tries[each].name}: {why}" if each in tries else why)
            else:
                able.append(each)
                break
        else:
            left_out[name] = "; ".join(reasons)
    return able, left_out


def with_own_rule(name: str, temperature: float) -> str:
    """A recipe under its own rule. Above temperature 0 the benchmark else takes the one that follows plain decoding's draws,
    where a recipe offers it; this table is about the recipe as it is."""
    from draftwood import recipes
    from draftwood.bench.spec.text_equality import following

    own = {key: recipes.options(name)[key].default for key in following(name, temperature)}
    return ":".join((name, *(f"{key}={value}" for key, value in own.items())))


def show(screen: Screen, plan: "Plan", found: dict[str, Any]) -> None:
    from draftwood.bench.report.recipes_page import SLOW, given, name_of, slow

    screen.line(heading(found, plan))
    screen.show(table(found, plan.methods))
    flagged = slow(found, plan.methods)
    screen.line(f"below {SLOW:g} times plain decoding: {', '.join(flagged) or 'none'}")
    screen.lines(f"{name_of(name)}: with {', '.join(used)}" for name in plan.methods if (used := given(name)))
    screen.lines(f"left out: {name}: {why}" for name, why in found["left_out"].items())
    screen.lines((*remarks(found, plan), ""))


def table(found: dict[str, Any], methods: Sequence[str]) -> Table:
    """A line for each recipe, with the authors' claim."""
    from draftwood.bench.report.recipes_page import HEADS, cells, claim, name_of

    drawn = compact("recipe", *HEADS, "the authors' claim")
    drawn.columns[-1].justify = "left"
    for method in methods:
        drawn.add_row(name_of(method), *cells(found, method), claim(name_of(method)))
    return drawn
