"""draftwood bench soak: a live server under good and bad clients while its drafter fails."""

from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli.bench.common import shared
from draftwood.cli.options import Device, Dtype, Seed
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from draftwood.bench.soak.run import Found

SHOWN = 10
RUNS_HELP = (
    "Times that the same load runs, each --seconds long; a second one must leave the memory as large as the first."
)


def soak(
    recipe: Annotated[str, typer.Option(help="A recipe of the rule match: a seed then gives one text.")] = "auto",
    seconds: Annotated[float, typer.Option(min=0.5, help="How long the clients ask.")] = 60.0,
    clients: Annotated[int, typer.Option(min=1, max=1024, help="Clients at a time.")] = 32,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences that run together.")] = 8,
    max_tokens: shared.MaxTokens = 64,
    compare: Annotated[int, typer.Option(min=0, help="Answers that are asked for again, alone.")] = 40,
    runs: Annotated[int, typer.Option(min=1, max=10, help=RUNS_HELP)] = 1,
    faults: Annotated[bool, typer.Option(help="Let the drafter raise, return NaN and turn slow.")] = True,
    seed: Seed = 0,
    threads: shared.Threads = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    model: shared.Model = "smollm2",
    out: shared.Out = None,
) -> None:
    """Does the server stay whole under load, bad clients and a drafter that fails?

    Clients ask for answers of all kinds, some leave, some read nothing, some send rubbish. Status 1 if the server or a
    request was lost, if an answer is wrong or differs from the same request asked alone afterwards, or if anything is left
    in the engine, its queue or its cache.
    """
    from draftwood.bench.soak.run import soak as run
    from draftwood.cli.serve import log_to_stderr, need_server

    shared.writable(out)
    need_server()
    chosen, *others = shared.recipe_names(recipe, "--recipe auto")
    if others:
        raise OptionError(f"one recipe is soaked at a time, got {recipe!r}\nhint: for example --recipe auto")
    loaded, source, meter = shared.begin(model, dtype, device, threads)
    log_to_stderr(quiet=True)
    found = run(
        loaded,
        chosen,
        seconds=seconds,
        clients=clients,
        max_tokens=max_tokens,
        compare=compare,
        seed=seed,
        max_num_seqs=max_num_seqs,
        faults=faults,
        runs=runs,
    )
    source["machine_meanwhile"] = meter.read()
    screen = Screen()
    screen.lines(lines(found, clients, chosen, loaded.info.backend))
    screen.lines(shared.source_lines(source))
    shared.save(out, {"provenance": source, **found.record()})
    if found.faults:
        screen.line(f"FAIL: {len(found.faults)} faults")
        raise typer.Exit(1)


def memory(sizes: "Sequence[int]") -> str:
    """After each run, and the growth in the last one."""
    from draftwood.bench.soak.resources import growth

    more = growth(sizes)
    told = ", ".join(f"{size / 2**20:.0f} MiB after run {i}" for i, size in enumerate(sizes, 1)) or "unknown"
    return told if more is None else f"{told} ({more:+.1%})"


def lines(found: "Found", clients: int, recipe: str, backend: str) -> list[str]:
    """What was found."""
    record = found.record()

    def times(name: str) -> str:
        return "none" if record[name] is None else ", ".join(f"{k} {1000 * v:.1f} ms" for k, v in record[name].items())

    def counts(given: dict[str, int]) -> str:
        return ", ".join(f"{name} {count}" for name, count in sorted(given.items())) or "none"

    differing = f", {found.near_ties} differ, by near-ties" if found.near_ties else ", all equal"
    return [
        f"{recipe}, {clients} clients, {found.seconds:.1f} s, {backend}",
        f"requests            {counts(found.requests)}",
        f"statuses            {counts(record['statuses'])}",
        f"rounds with a fault {counts(found.injected)}",
        f"tokens              {found.tokens}",
        f"time to first token {times('first_token_seconds')}",
        f"time per token      {times('token_seconds')}",
        f"resident memory     {memory(found.memory)}",
        f"asked again alone   {found.compared}{'' if found.faults else differing}",
        *(f"FAULT {fault}" for fault in found.faults[:SHOWN]),
    ]
