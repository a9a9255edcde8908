"""draftwood bench verifiers: the time of every rule, compared with the target pass."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.bench.cells import interval, number
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import quarters
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.options import Device, Dtype
from draftwood.cli.screen import Screen

if TYPE_CHECKING:
    from draftwood.bench.micro.verifiers import Measured


def verifiers(
    model: shared.Model = "smollm2",
    dtype: Dtype = "auto",
    device: Device = "auto",
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas; at most 256.")] = "1,4,32",
    context: Annotated[int, typer.Option(min=1, help="Committed tokens of each sequence before the pass.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="How often everything is timed.")] = 6,
    threads: shared.Threads = None,
    out: shared.Out = None,
) -> None:
    """The time in which each rule checks a tree of 64 nodes, as a share of the target pass over the same tree."""
    from draftwood.bench.micro.verifiers import measure

    shared.writable(out)
    sizes = shared.whole_numbers("batches", batches, shared.MOST_SEQUENCES)
    loaded, source, meter = shared.begin(model, dtype, device, threads)
    found = measure(loaded, sizes, context=context, repeats=repeats, say=quarters("repeats"))
    source["machine_meanwhile"] = meter.read()
    show(Screen(), found, loaded.info.backend, repeats, source)
    shared.save(out, {"provenance": source, "repeats": repeats, "context": context, **asdict(found)})


def show(screen: Screen, found: "Measured", backend: str, repeats: int, source: dict[str, Any]) -> None:
    from draftwood.bench.micro.verifiers import verdicts

    about = found.distributions
    screen.line(
        f"checking trees of 64 nodes, {about['vocabulary']:.0f} tokens, top-p {about['top_p']:g}, {backend}, "
        f"{source['threads']} threads, {repeats} repeats"
    )
    screen.line(
        f"synthetic distributions: {about['entropy_nats']:.1f} nats, {about['tokens_in_top_p']:.0f} tokens in top-p, "
        f"overlap of target and draft {about['overlap']:.2f}; the target pass is a real one"
    )
    screen.line()
    drawn = compact("rule", "draft", "batch", "nodes", "ms", "quartiles", "% of the pass, 95 %", "kept")
    for row in found.rows:
        case = (row.rule, row.draft, str(row.batch), f"{row.nodes:.0f}")
        times = (f"{row.ms:.2f}", f"{row.low:.2f}-{row.high:.2f}", interval(row.share, 1, 100))
        drawn.add_row(*case, *times, number(row.kept, 2))
    screen.show(drawn)
    screen.line()
    for each in found.growth:
        small, large = each.batches
        screen.line(f"{each.rule} on {each.draft}: batch {large} takes {interval(each.ratio)} times as long as {small}")
    screen.lines(verdicts(found))
    if found.absent:
        screen.line(f"not built in, so not timed: {', '.join(found.absent)}")
    screen.line("kept: accepted draft tokens of a sequence; % of the pass: median of ratios within a repeat")
    screen.lines(shared.source_lines(source))
