"""draftwood bench spec: recipes and other engines on real questions, interleaved, resumable."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli.bench.progress import Progress
from draftwood.cli.bench.shared import (
    MaxTokens,
    Model,
    Questions,
    Recipes,
    Threads,
    read_questions,
    recipe_names,
    save,
    writable,
)
from draftwood.cli.options import Dtype
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.spec.run import Plan
    from draftwood.bench.spec.tasks import Item

Peers = Annotated[str, typer.Option(help="Other engines, separated by commas, for example transformers,llamacpp.")]
PerTask = Annotated[int | None, typer.Option(min=1, help="Questions of each sub-task, spread evenly; all if left out.")]
Warmup = Annotated[int, typer.Option(min=0, help="Answers to the first question by each method before any is timed.")]
Out = Annotated[Path | None, typer.Option(help="Results as JSON; the results log beside it (.jsonl) lets a run go on.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Begin anew, whatever the results log holds.")]


def spec(
    questions: Questions,
    recipes: Recipes = "prompt_lookup,auto",
    peers: Peers = "",
    per_task: PerTask = None,
    max_tokens: MaxTokens = 64,
    temperature: float = 0.0,
    seed: int = 0,
    threads: Threads = None,
    warmup: Warmup = 3,
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    out: Out = None,
    fresh: Fresh = False,
) -> None:
    """Speed on real questions: recipes, plain decoding and other engines, question by question in turn."""
    import torch

    from draftwood.bench import machine
    from draftwood.bench.provenance import provenance
    from draftwood.bench.spec import peers as known
    from draftwood.bench.spec.peers import Settings
    from draftwood.bench.spec.results_log import ResultsLog
    from draftwood.bench.spec.run import Plan, broken, measure, recipes_with_plain, results
    from draftwood.bench.spec.tasks import choose
    from draftwood.core.sampling.params import SamplingParams

    writable(out)
    if out is not None and questions.resolve() in (out.resolve(), out.with_suffix(".jsonl").resolve()):
        raise OptionError(
            f"{out} would overwrite the questions, or its results log would\nhint: another name for --out"
        )
    methods = recipes_with_plain(recipe_names(recipes))
    others = tuple(dict.fromkeys(name.strip() for name in peers.split(",") if name.strip()))
    known.check(others, model)
    SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)  # refused here, not in a worker
    items = tuple(choose(read_items(questions), per_task))
    settings = Settings(model, threads or torch.get_num_threads(), max_tokens, temperature, seed, methods, dtype=dtype)
    plan = Plan(items, settings, others, warmup)
    start = machine.look()
    waits = {key: os.environ.get(key) for key in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    source = {**provenance(), "threads": settings.threads, **waits, "machine_at_start": start}
    results_log = ResultsLog(results_log_of(out), plan.identity(source), fresh=fresh)
    with results_log.alone():
        if results_log.open() < len(items) and (words := machine.warning(start)):
            print(words, file=sys.stderr, flush=True)
        measure(plan, results_log, say=Progress())
    found = results(plan, results_log)
    source |= {"methods": results_log.facts, "machine_at_end": machine.look()}
    show(Screen(), found, plan, source)
    save(out, {"settings": results_log.settings, "provenance": source, **found, "machine": results_log.machine})
    if wrong := broken(found, methods):
        print("\n".join(("NOT AS PROMISED", *wrong)), flush=True)
        raise typer.Exit(1)


def results_log_of(out: Path | None) -> Path | None:
    """results.json has its results log in results.jsonl."""
    if out is None:
        return None
    if out.suffix == ".jsonl":
        raise OptionError(f"{out} would be its own results log\nhint: name it {out.with_suffix('.json')}")
    return out.with_suffix(".jsonl")


def read_items(file: Path) -> "list[Item]":
    """The questions of a file under names that are unique."""
    from draftwood.bench.spec.tasks import Item

    asked = read_questions(file)
    names = [str(q.labels.get("question_id", f"line-{i}")) for i, q in enumerate(asked, start=1)]
    count = Counter(names)
    unique = [name if count[name] == 1 else f"{name}-{i}" for i, name in enumerate(names, start=1)]
    return [Item(name, str(q.labels.get("category", "")), q.turns[0]) for name, q in zip(unique, asked, strict=True)]


def show(screen: Screen, found: dict[str, Any], plan: "Plan", source: dict[str, Any]) -> None:
    """The tables, what they leave out, and where they come from."""
    from draftwood.cli.bench import tables

    s = plan.settings
    backend = next((f["backend"] for f in source["methods"].values() if "backend" in f), s.dtype)
    screen.line(
        f"{len(plan.items)} questions, {s.max_tokens} tokens, temperature {s.temperature:g}, {s.threads} threads, {backend}"
    )
    for drawn in (
        tables.speeds(found, plan.methods),
        tables.drafting(found, plan.methods),
        tables.against(found),
        tables.by_task(found, plan.methods),
    ):
        if drawn is not None:
            screen.line()
            screen.show(drawn)
    screen.line()
    screen.line("speed-up: mean of the questions' speeds over that of autoregressive, 95 % by paired bootstrap")
    screen.line(
        "decode: tok/s after the first token; TTFT: median, ms; ms/tok, p99: over answers; t/pass: tokens per pass"
    )
    screen.line(
        "acc., by pos.: accepted of drafted; prop., score, rest: shares of decoding time; same: text as plain's"
    )
    for name, why in found["not_compared"].items():
        screen.line(f"{name}: not compared: {why}")
    if plan.peers and s.temperature == 0:
        screen.line("same text of peers is information only: other arithmetic, other ties")
    if s.temperature > 0:
        screen.line("above temperature 0 texts are compared of recipes that follow plain decoding's draws (rule match)")
        if plan.peers:
            screen.line("peers draw for themselves: speeds only")
    if found["failures"]:
        screen.line(f"{len(found['failures'])} answers failed; each ratio is over the questions both methods answered:")
        for failure in found["failures"][:5]:
            screen.line(f"  {failure['method']}, question {failure['question']}: {failure['error']}")
    if (foreign := found["foreign_cores"]) is not None:
        screen.line(f"cores in other hands: {foreign['mean']:.2f} on average, {foreign['most']:.2f} at worst")
    screen.line(json.dumps(source))
