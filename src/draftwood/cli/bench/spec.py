"""draftwood bench spec: recipes and other engines on real questions, interleaved, resumable."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli.bench import spec_tables as tables
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import Progress, say
from draftwood.cli.options import Device, Dtype
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError
from draftwood.option_parsing import words_of

if TYPE_CHECKING:
    from draftwood.bench.spec.questions import Item
    from draftwood.bench.spec.run import Plan

Peers = Annotated[str, typer.Option(help="Other engines, separated by commas, for example transformers,llamacpp.")]
Draft = Annotated[str, typer.Option(help="A GGUF file, the draft model of the peer llamacpp-draft.")]
PerTask = Annotated[int | None, typer.Option(min=1, help="Number of questions of each task; all if left out.")]
Warmup = Annotated[int, typer.Option(min=0, help="Answers to the first question by each method before any is timed.")]
Out = Annotated[Path | None, typer.Option(help="Results as JSON; a log of the same name (.jsonl) lets a run continue.")]
Html = Annotated[Path | None, typer.Option(help="Write a report with plots, one page without network, to this file.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over, whatever the results log holds.")]


def spec(
    questions: shared.Questions,
    recipes: shared.Recipes = "prompt_lookup,auto",
    peers: Peers = "",
    draft: Draft = "",
    per_task: PerTask = None,
    max_tokens: shared.MaxTokens = 64,
    temperature: shared.Temperature = 0.0,
    seed: int = 0,
    threads: shared.Threads = None,
    warmup: Warmup = 3,
    model: shared.Model = "smollm2",
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    html: Html = None,
    fresh: Fresh = False,
) -> None:
    """Speed on real questions: recipes, plain decoding and other engines, question by question in turn."""
    from draftwood.bench.spec import peers as known
    from draftwood.bench.spec.questions import choose
    from draftwood.bench.spec.run import Plan
    from draftwood.core.sampling.params import SamplingParams

    results_log_of(out, questions)
    html_page(html, questions)
    methods = shared.recipe_names(recipes)
    others = tuple(words_of(peers))
    known.check(others, model, draft)
    sampling: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens}
    SamplingParams(**sampling)  # refused here, not in a worker
    items = tuple(choose(read_items(questions), per_task))
    plan = Plan(items, settings(methods, threads, dtype, device, model=model, draft=draft, **sampling), others, warmup)
    found, source = run(plan, out, questions, fresh=fresh, html=html)
    show(Screen(), found, plan, source)
    finish(found, plan)


def settings(methods: list[str], threads: int | None, dtype: str, device: str, **more: Any) -> Any:
    """Settings of a run with plain decoding as its first method. A device that cannot be used is refused here."""
    import torch

    from draftwood.bench.spec.peers import Settings
    from draftwood.bench.spec.run import recipes_with_plain
    from draftwood.models.backends.choose import precision
    from draftwood.models.loading.load import check_device

    place = check_device(device, dtype)
    precision(dtype, place)
    threads, every = threads or torch.get_num_threads(), recipes_with_plain(methods)
    return Settings(threads=threads, methods=every, dtype=dtype, device=str(place), **more)


def run(
    plan: "Plan", out: Path | None, questions: Path, *, fresh: bool = False, html: Path | None = None, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure what the results log does not hold yet and save. Returns the figures and their provenance."""
    from draftwood.bench import other_processes
    from draftwood.bench.provenance import provenance
    from draftwood.bench.spec.results_log import ResultsLog
    from draftwood.bench.spec.run import measure, results

    start = other_processes.look()
    waits = {key: os.environ.get(key) for key in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    source = {
        **provenance(device=plan.settings.device),
        "threads": plan.settings.threads,
        **waits,
        "machine_at_start": start,
    }
    log = ResultsLog(results_log_of(out, questions), plan.identity(source), fresh=fresh)
    with log.alone():
        if log.open() < len(plan.items) and (warning := other_processes.warning(start)):
            say(warning)
        if len(log.done) < len(plan.items):
            log.begin({**source, **more})
            say(f"loading and warming up {len(plan.methods)} methods")
        try:
            measure(plan, log, say=Progress())
        except KeyboardInterrupt:
            kept = f"are in {log.path}; the same command continues" if log.path else "are lost; --out keeps them"
            say(f"stopped: {len(log.done)} of {len(plan.items)} questions {kept}")
            raise
    found = {**results(plan, log), **more}
    source |= {"methods": log.facts, "machine_at_end": other_processes.look()}
    if html is not None:
        from draftwood.bench.report.page import write_report

        write_report(html, plan, log)
        say(f"report: {html}")
    shared.save(out, {"settings": log.settings, "provenance": source, **found, "machine": log.machine})
    return found, source


def finish(found: dict[str, Any], plan: "Plan") -> None:
    """Status 1 where a recipe failed or wrote another text than it must."""
    from draftwood.bench.spec.run import broken

    if wrong := broken(found, plan.settings.methods):
        print("\n".join(("NOT AS PROMISED", *wrong)), flush=True)
        raise typer.Exit(1)


def results_log_of(out: Path | None, questions: Path) -> Path | None:
    """results.json has its results log in results.jsonl. Refuses files that cannot be written, and the questions."""
    shared.writable(out)
    if out is None:
        return None
    if questions.resolve() in (out.resolve(), out.with_suffix(".jsonl").resolve()):
        raise OptionError(
            f"{out} would overwrite the questions, or its results log would\nhint: another name for --out"
        )
    if out.suffix == ".jsonl":
        raise OptionError(f"{out} would be its own results log\nhint: name it {out.with_suffix('.json')}")
    return out.with_suffix(".jsonl")


def html_page(html: Path | None, questions: Path | None = None) -> None:
    """Refuses a report that cannot be written, and one over a file that is no page, such as the questions or a log."""
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise OptionError(f"{html} is not named as a page\nhint: --html {html.with_suffix('.html')}")
    if html is not None and questions is not None and html.resolve() == questions.resolve():
        raise OptionError(f"{html} would overwrite the questions\nhint: another name for --html")
    shared.writable(html)


def read_items(file: Path) -> "list[Item]":
    """The questions of a file under unique names."""
    from draftwood.bench.spec.questions import make_items

    asked = shared.read_questions(file)
    names = [str(q.labels.get("question_id", f"line-{i}")) for i, q in enumerate(asked, start=1)]
    count = Counter(names)
    unique = [name if count[name] == 1 else f"{name}-{i}" for i, name in enumerate(names, start=1)]
    labels = [str(q.labels.get("category", "")) for q in asked]
    return make_items([(name, label, q.turns[0]) for name, label, q in zip(unique, labels, asked, strict=True)])


def heading(found: dict[str, Any], plan: "Plan") -> str:
    s = plan.settings
    device = found["device"][s.methods[0]]
    questions = found["figures"][tables.ALL][s.methods[0]]["questions"]
    return (
        f"{questions} questions, {s.max_tokens} tokens, temperature {s.temperature:g}, {s.threads} threads, "
        f"{found['precision'][s.methods[0]]}{'' if device == 'cpu' else f' on {device}'}"
    )


def show(screen: Screen, found: dict[str, Any], plan: "Plan", source: dict[str, Any]) -> None:
    """The tables, their legend, what is left out, and the provenance."""
    screen.line(heading(found, plan))
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
    screen.lines((*tables.LEGEND, *remarks(found, plan), json.dumps(source)))


def remarks(found: dict[str, Any], plan: "Plan") -> list[str]:
    """What is not compared, what failed, and whether the machine was quiet."""
    said = [f"{name}: not compared: {why}" for name, why in found["not_compared"].items()]
    figures = found["figures"][tables.ALL]
    said += [f"{n}: {f['near_ties']} near ties, equal up to rounding" for n, f in figures.items() if f["near_ties"]]
    temperature = plan.settings.temperature
    if plan.peers:
        read = tables.prompt_line(found, plan.settings.methods[0])
        lines = read, tables.precision_line(found, plan.peers), tables.device_line(found, plan.peers)
        said += [line for line in lines if line is not None]
        equal = "equal texts of peers are information only: their rounding differs"
        said.append("peers use other random numbers: only speeds are compared" if temperature else equal)
    if temperature:
        said.append("above temperature 0, texts are compared of recipes that use plain decoding's draws (rule match)")
    if failures := found["failures"]:
        said.append(f"{len(failures)} answers failed; each ratio is over the questions both methods answered:")
        said += [f"  {f['method']}, question {f['question']}: {f['error']}" for f in failures[:5]]
    if (foreign := found["foreign_cores"]) is not None:
        said.append(f"cores used by other processes: {foreign['mean']:.2f} on average, {foreign['most']:.2f} at most")
    return said
