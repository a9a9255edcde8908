"""draftwood bench drafters: the host's time for one proposal of drafters without a model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.bench.cells import percent
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import quarters, say
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.screen import Screen
from draftwood.errors import UnknownNameError
from draftwood.option_parsing import words_of

if TYPE_CHECKING:
    from draftwood.bench.micro.drafters import Timed


def drafters(
    store: Annotated[Path | None, typer.Option(help="A datastore; without one that drafter is left out.")] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="Files or folders to decode. Default: draftwood's sources. Repeatable.")
    ] = None,
    drafters: Annotated[str, typer.Option(help="Some drafters, separated by commas; all if left out.")] = "",
    contexts: Annotated[str, typer.Option(help="Tokens before a proposal, separated by commas.")] = "1024,4096,8192",
    rounds: Annotated[int, typer.Option(min=1, help="Proposals after each context.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Parts of the texts that are decoded.")] = 4,
    model: shared.Model = "smollm2",
    out: shared.Out = None,
) -> None:
    """The time in which drafters that need no model propose a tree, by the length of the text. Runs no model."""
    from draftwood.bench import other_processes
    from draftwood.bench.micro.drafters import DRAFTERS, Sources, measure
    from draftwood.bench.provenance import provenance
    from draftwood.models.loading.load import load_tokenizer
    from draftwood.train.data.documents import Documents, files_of

    shared.writable(out)
    lengths = shared.whole_numbers("contexts", contexts)
    names = words_of(drafters) or [name for name in DRAFTERS if name != "datastore" or store is not None]
    for name in names:
        if name not in DRAFTERS:
            raise UnknownNameError("drafter", name, DRAFTERS)
    files = files_of(text or [Path(__file__).parents[2]])
    tokenizer = load_tokenizer(model)
    made = {name: DRAFTERS[name](Sources(store, tokenizer.fingerprint)) for name in names}
    wanted, tokens = repeats * (max(lengths) + rounds + 1), list[int]()
    for piece in Documents(files, tokenizer).pieces():
        tokens += piece.ids.tolist()
        if len(tokens) >= wanted:
            break
    start = other_processes.look()
    if warning := other_processes.warning(start):
        say(warning)
    source, meter = {**provenance(), "machine_at_start": start}, other_processes.Meter(())
    sizes = {"vocab_size": tokenizer.vocab_size, "rounds": rounds, "repeats": repeats}
    found = measure(made, tokens, lengths, **sizes, say=quarters("repeats"))
    source["machine_meanwhile"] = meter.read()
    show(Screen(), found, source)
    shared.save(
        out, {"provenance": source, "rounds": rounds, "repeats": repeats, "rows": [asdict(row) for row in found]}
    )


def show(screen: Screen, found: "list[Timed]", source: dict[str, Any]) -> None:
    heads = ("context", "first ms", "ms", "95 %", "own ms", "own 95 %", "nodes", "drafted")
    drawn = compact("drafter", *heads)
    for row in found:
        times = (f"{ms:.3f}" for ms in (row.first, row.median, row.p95, row.work, row.work_p95))
        drawn.add_row(row.drafter, str(row.context), *times, f"{row.nodes:.1f}", percent(row.drafted))
    screen.line(f"milliseconds of a proposal, one sequence, {found[0].proposals} proposals each after the first")
    screen.show(drawn)
    screen.line("first: after the prompt, medians; ms and 95 %: median and 95th percentile of the later ones")
    screen.line("own: time of this thread alone, without waiting for others; drafted: proposals with any node")
    screen.lines(shared.source_lines(source))
