"""draftwood bench pass: the cost of a target pass by its number of nodes."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli.bench.shared import Model, Out, Threads, save, whole_numbers, writable
from draftwood.cli.bench.tables import compact, ratio
from draftwood.cli.options import Dtype
from draftwood.cli.screen import Screen

if TYPE_CHECKING:
    from draftwood.bench.micro.target_pass import Measured


def passes(
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    sizes: Annotated[str, typer.Option(help="Nodes of a pass, separated by commas.")] = "1,2,4,8,16,32,64",
    contexts: Annotated[str, typer.Option(help="Committed rows before the pass, separated by commas.")] = "128,512",
    repeats: Annotated[int, typer.Option(min=1, help="How often each kind of pass is timed.")] = 60,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """The time of one target pass by nodes, over that of one token, and how near it is to the speed of memory."""
    import torch

    from draftwood.bench import machine
    from draftwood.bench.micro.target_pass import measure
    from draftwood.bench.provenance import provenance
    from draftwood.models.loading.load import load

    writable(out)
    counts, rows = whole_numbers("sizes", sizes), whole_numbers("contexts", contexts)
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load(model, dtype=dtype)
    start = machine.look()
    if words := machine.warning(start):
        print(words, file=sys.stderr, flush=True)
    source: dict[str, Any] = {**provenance(loaded.backend), "machine_at_start": start}
    meter = machine.Meter(())
    found = measure(loaded, counts, rows, repeats=repeats, say=say)
    source["machine_meanwhile"] = meter.read()
    show(Screen(), found, loaded.backend, repeats, source)
    save(out, {"provenance": source, "repeats": repeats, **asdict(found)})


def say(done: int, total: int) -> None:
    if done == 0 or done == total or done % max(total // 4, 1) == 0:
        print(f"{done}/{total} repeats" if done else "warming up", file=sys.stderr, flush=True)


def show(screen: Screen, found: "Measured", backend: str, repeats: int, source: dict[str, Any]) -> None:
    floors = {f.context: f for f in found.floors}
    drawn = compact("pass", "context", "nodes", "ms", "quartiles", "over one token, 95 %", "nodes/s", "over memory")
    for row in found.rows:
        drawn.add_row(
            row.case.shape,
            str(row.case.context),
            str(row.case.nodes),
            f"{row.ms:.2f}",
            f"{row.low:.2f}-{row.high:.2f}",
            ratio(None if row.ratio is None else asdict(row.ratio)),
            f"{row.nodes_per_second:.0f}",
            f"{row.ms / floors[row.case.context].from_memory:.2f}",
        )
    screen.line(f"one target pass, logits at every node, {backend}, {source['threads']} threads, {repeats} repeats")
    screen.line()
    screen.show(drawn)
    screen.line()
    speed = {name: f"{each['median'] / 1e9:.1f} GB/s" for name, each in found.bandwidth.items()}
    for f in found.floors:
        screen.line(
            f"floor at context {f.context}: {f.bytes / 1e6:.0f} MB are {f.from_memory:.2f} ms from memory "
            f"({speed['memory']}), {f.from_cache:.2f} ms from a warm cache of the same size ({speed['cache']})"
        )
    for p in found.parts:
        named = ", ".join(f"{name} {ms:.2f}" for name, ms in p.ms.items())
        screen.line(f"a chain of {p.case.nodes} at context {p.case.context} spends, ms: {named}")
    screen.line("over one token: median of ratios within a repeat; nodes/s: tokens per second if every node were kept")
    screen.line("over memory: times the floor from memory; parts: the pass less the same pass without them")
    meanwhile = source.get("machine_meanwhile", {})
    if "foreign_cores" in meanwhile:
        screen.line(f"cores in other hands: {meanwhile['foreign_cores']:.2f} on average")
    screen.line(json.dumps(source))
