"""draftwood simulate: mean and 99th-percentile latency of schedulers on fixed traces of requests."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.bench.cells import NONE, percent
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.screen import Screen
from draftwood.errors import UnknownNameError

if TYPE_CHECKING:
    from draftwood.bench.load.compare import Compared

RESIDENT_HELP = "Slots of the schedulers that let requests pause in the cache; as many as --slots still run together."

NOISE_HELP = "Deviation of the logarithm of lengths that are told, as a good predictor would."


def simulate(
    machine: Annotated[str, typer.Option(help="Whose passes: two cores, accelerator, or all.")] = "all",
    trace: Annotated[str, typer.Option(help="Which arrivals: poisson, bursts, heavy tail, or all.")] = "all",
    slots: Annotated[int, typer.Option(min=1, max=256, help="Sequences that run together.")] = 8,
    resident: Annotated[int, typer.Option(min=1, max=4096, help=RESIDENT_HELP)] = 32,
    length_noise: Annotated[float, typer.Option("--length-noise", min=0, help=NOISE_HELP)] = 0.3,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every trace.")] = 5,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens that a request allows.")] = 2048,
    out: shared.Out = None,
) -> None:
    """Latencies of schedulers against first come, first served, by a simulator of the engine's rounds.

    The schedulers are the engine's own. Answers and acceptance are drawn from recorded ones; passes take the seconds of a
    made-up machine. Everything follows from the seeds.
    """
    from draftwood.bench.load.arrivals import machines, recorded, traces
    from draftwood.bench.load.compare import compare, schedulers
    from draftwood.bench.load.simulate import Machine

    shared.writable(out)
    known = {
        name: Machine(**{**fields, "passes": tuple((int(n), s) for n, s in fields["passes"])})
        for name, fields in machines().items()
    }
    chosen = {each.name: each for each in traces()}
    picked = _picked("machine", machine, list(known)), _picked("trace", trace, list(chosen))
    answers, rows = recorded(), list["Compared"]()
    for one in picked[0]:
        for which in picked[1]:
            ways = schedulers(slots, max(resident, slots), length_noise)
            rows += compare(one, known[one], chosen[which], answers, ways, slots, max_tokens, seeds)
    screen = Screen()
    screen.line(f"{seeds} seeds of each trace, {slots} sequences together, {len(answers)} recorded answers")
    show(screen, rows)
    shared.save(out, {"rows": [asdict(row) for row in rows]})


def _picked(kind: str, name: str, known: list[str]) -> list[str]:
    if name == "all":
        return known
    if name not in known:
        raise UnknownNameError(kind, name, known)
    return [name]


def show(screen: Screen, rows: "list[Compared]") -> None:
    heads = ("mean, s", "against first come", "worst seed", "99 %, s", "slowest, times alone", "preempted")
    drawn = compact("machine, trace, scheduler", *heads, "error of lengths", "of services", "busy")
    for row in rows:
        drawn.add_row(
            f"{row.machine}, {row.trace}, {row.scheduler}",
            f"{row.mean:.2f}",
            "1.00" if row.ratio is None else f"{row.ratio:.2f}",
            NONE if row.worst is None else f"{row.worst:.2f}",
            f"{row.p99:.2f}",
            f"{row.slowest:.0f}",
            str(row.preempted),
            percent(row.length_error),
            percent(row.service_error),
            percent(row.busy),
        )
    screen.show(drawn)
    screen.line("against first come: mean latency over that of first come, first served, on the same arrivals")
