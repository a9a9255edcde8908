"""draftwood bench pass: the cost of a target pass by its number of nodes."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.bench.cells import NONE, interval
from draftwood.cli.bench.common.progress import quarters
from draftwood.cli.bench.common.shared import Model, Out, Threads, begin, save, source_lines, whole_numbers, writable
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.options import Device, Dtype
from draftwood.cli.screen import Screen

if TYPE_CHECKING:
    from draftwood.bench.micro.target_pass import Measured


def pass_(
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    device: Device = "auto",
    sizes: Annotated[str, typer.Option(help="Nodes of a pass, separated by commas.")] = "1,2,4,8,16,32,64",
    contexts: Annotated[str, typer.Option(help="Committed tokens before the pass, separated by commas.")] = "128,512",
    groups: Annotated[
        str, typer.Option(help="Also passes in which so many layers read one input, separated by commas; 1: none.")
    ] = "1",
    repeats: Annotated[int, typer.Option(min=1, help="How often each kind of pass is timed.")] = 60,
    threads: Threads = None,
    out: Out = None,
) -> None:
    """The time of one target pass by nodes, its ratio to that of one token and to reading all weights from memory."""
    from draftwood.bench.micro.target_pass import measure

    writable(out)
    counts, lengths = whole_numbers("sizes", sizes), whole_numbers("contexts", contexts)
    wide = whole_numbers("groups", groups)
    loaded, source, meter = begin(model, dtype, device, threads)
    found = measure(loaded, counts, lengths, groups=wide, repeats=repeats, say=quarters("repeats"))
    source["machine_meanwhile"] = meter.read()
    show(Screen(), found, loaded.info.backend, repeats, source)
    save(out, {"provenance": source, "repeats": repeats, **asdict(found)})


def show(screen: Screen, found: "Measured", backend: str, repeats: int, source: dict[str, Any]) -> None:
    floors = {f.context: f for f in found.floors}
    drawn = compact(
        "pass", "context", "nodes", "ms", "quartiles", "over one token, 95 %", "nodes/s", "over memory", "over bound"
    )
    for row in found.rows:
        shape = row.case.shape if row.case.group == 1 else f"groups of {row.case.group}"
        case = (shape, str(row.case.context), str(row.case.nodes))
        times = (f"{row.ms:.2f}", f"{row.low:.2f}-{row.high:.2f}", interval(row.ratio), f"{row.nodes_per_second:.0f}")
        floor = floors.get(row.case.context)
        least = () if floor is None else (floor.from_memory, floor.least(row.case.nodes))
        drawn.add_row(*case, *times, *((f"{row.ms / ms:.2f}" for ms in least) if least else (NONE, NONE)))
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
    if found.floors and found.floors[0].arithmetic is not None:
        screen.line(
            f"arithmetic: products of bytes alone take {found.floors[0].arithmetic:.2f} ms a node at the rate measured here"
        )
    if not found.floors:
        screen.line("memory bandwidth n/a: only that of a CPU is measured")
    for p in found.parts:
        named = ", ".join(f"{name} {ms:.2f}" for name, ms in p.ms.items())
        screen.line(f"a chain of {p.case.nodes} at context {p.case.context} spends, ms: {named}")
    nodes = "over one token: median of ratios within a repeat; nodes/s: tokens per second if every node were accepted"
    bound = (
        "over memory: ratio to the floor from memory; over bound: to the larger of that and the arithmetic of the nodes"
    )
    parts = "parts: the pass minus the same pass without them"
    screen.lines((nodes, bound, parts, *source_lines(source)))
