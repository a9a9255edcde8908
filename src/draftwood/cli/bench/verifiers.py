"""draftwood bench verifiers: what rules take, beside the target pass."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli.bench.passes import say
from draftwood.cli.bench.shared import Model, Out, Threads, save, whole_numbers, writable
from draftwood.cli.bench.tables import NONE, compact, number, ratio
from draftwood.cli.options import Dtype
from draftwood.cli.screen import Screen

if TYPE_CHECKING:
    from draftwood.bench.micro.verifiers import Measured
    from draftwood.bench.statistics import Ratio

MOST_ROWS = 256  # the logits of so many trees of 64 nodes are 3 GB over 49,152 tokens


def verifiers(
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    batches: Annotated[str, typer.Option(help="Rows of a round, separated by commas; at most 256.")] = "1,4,32",
    context: Annotated[int, typer.Option(min=1, help="Committed rows of each text before the pass.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="How often everything is timed.")] = 6,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """The time in which each rule checks a tree of 64 nodes, as a share of the target pass over the same tree."""
    import torch

    from draftwood.bench import machine
    from draftwood.bench.micro.verifiers import measure
    from draftwood.bench.provenance import provenance
    from draftwood.models.loading.load import load

    writable(out)
    sizes = whole_numbers("batches", batches, MOST_ROWS)
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load(model, dtype=dtype)
    start = machine.look()
    if words := machine.warning(start):
        print(words, file=sys.stderr, flush=True)
    source: dict[str, Any] = {**provenance(loaded.backend), "machine_at_start": start}
    meter = machine.Meter(())
    found = measure(loaded, sizes, context=context, repeats=repeats, say=say)
    source["machine_meanwhile"] = meter.read()
    show(Screen(), found, loaded.backend, repeats, source)
    save(out, {"provenance": source, "repeats": repeats, "context": context, **asdict(found)})


def show(screen: Screen, found: "Measured", backend: str, repeats: int, source: dict[str, Any]) -> None:
    from draftwood.bench.micro.verifiers import verdicts

    about = found.distributions
    screen.line(
        f"checking trees of 64 nodes, {about['vocabulary']:.0f} tokens, top-p {about['top_p']:g}, {backend}, "
        f"{source['threads']} threads, {repeats} repeats"
    )
    screen.line(
        f"distributions are made up: {about['entropy_nats']:.1f} nats, {about['tokens_in_top_p']:.0f} tokens in top-p, target and "
        f"draft share {about['overlap']:.2f}; the target pass is a real one"
    )
    screen.line()
    drawn = compact("rule", "draft", "rows", "nodes", "ms", "quartiles", "% of the pass, 95 %", "kept")
    for row in found.rows:
        drawn.add_row(
            row.rule,
            row.draft,
            str(row.batch),
            f"{row.nodes:.0f}",
            f"{row.ms:.2f}",
            f"{row.low:.2f}-{row.high:.2f}",
            _percent(row.share),
            number(row.kept, 2),
        )
    screen.show(drawn)
    screen.line()
    for each in found.growth:
        said = ratio(None if each.ratio is None else asdict(each.ratio))
        screen.line(
            f"{each.rule} on {each.draft}: {each.batches[1]} rows take {said} times as long as {each.batches[0]}"
        )
    for line in verdicts(found):
        screen.line(line)
    if found.absent:
        screen.line(f"not built in, so not timed: {', '.join(found.absent)}")
    screen.line("kept: drafted tokens of a row; % of the pass: median of ratios within a repeat")
    meanwhile = source.get("machine_meanwhile", {})
    if "foreign_cores" in meanwhile:
        screen.line(f"cores in other hands: {meanwhile['foreign_cores']:.2f} on average")
    screen.line(json.dumps(source))


def _percent(share: "Ratio | None") -> str:
    if share is None:
        return NONE
    ends = "" if share.low is None or share.high is None else f" {100 * share.low:.1f}-{100 * share.high:.1f}"
    return f"{100 * share.value:.1f}{ends}"
