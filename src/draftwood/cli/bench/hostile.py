"""draftwood bench hostile: workloads on which drafting can only lose."""

from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.bench.cells import NONE, interval, number, percent
from draftwood.bench.cells import rounds as rounds_cell
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import say
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.options import Device, Dtype, Seed
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.study.hostile.measure import Row

MOST = 24  # different prompts of each kind
COUNT_HELP = "Requests of each workload; of one-token-batch, batches of eight."
SLOW_HELP = "Times as long as before: passes on a machine that was slowed."
WORKLOADS_HELP = "Only these workloads, separated by commas; all if left out."


def hostile(
    recipe: Annotated[str, typer.Option(help="The recipe that is compared with plain decoding.")] = "auto",
    workloads: Annotated[str, typer.Option(help=WORKLOADS_HELP)] = "",
    count: Annotated[int, typer.Option(min=1, max=MOST, help=COUNT_HELP)] = MOST,
    max_tokens: shared.MaxTokens = 128,
    slow: Annotated[float, typer.Option(min=1, max=100, help=SLOW_HELP)] = 3.0,
    seed: Seed = 0,
    threads: shared.Threads = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    model: shared.Model = "smollm2",
    out: shared.Out = None,
) -> None:
    """Does auto stay at plain decoding's speed where drafting can only lose?

    Random text, creative writing at temperature 1.2, one-token answers, a drafter that becomes useless midway, a machine
    that slows down midway. Status 1 if the interval of the speed ratio lies below 0.98 as a whole, if more than 50 decoding
    rounds in a row are below 0.98 by median costs, if a text differs from plain decoding's, or if the drafter was disabled.
    """
    from draftwood.bench.study.hostile.measure import measure
    from draftwood.bench.study.hostile.workloads import workload

    shared.writable(out)
    chosen, *others = shared.recipe_names(recipe, "--recipe auto")
    if others:
        raise OptionError(f"one recipe is compared at a time, got {recipe!r}\nhint: for example --recipe auto")
    names = names_of(workloads)
    loaded, source, meter = shared.begin(model, dtype, device, threads)
    made = [workload(name, loaded, count, max_tokens, seed) for name in names]
    found = list(measure(loaded, chosen, made, slow=slow, seed=seed, say=say))
    source["machine_meanwhile"] = meter.read()
    screen = Screen()
    screen.line(
        f"{chosen} against plain decoding, {count} requests of each workload, up to {max_tokens} tokens, "
        f"{loaded.info.backend}"
    )
    show(screen, found)
    screen.lines(shared.source_lines(source))
    shared.save(out, {"provenance": source, "rows": [row.record() for row in found]})
    bad = [f"{row.workload} ({', '.join(row.failures)})" for row in found if row.failures]
    if bad:
        screen.line(f"FAIL: {'; '.join(bad)}")
        raise typer.Exit(1)


def names_of(text: str) -> list[str]:
    """Workloads that exist; all of them if none is named."""
    from draftwood.bench.study.hostile.workloads import NAMES

    names = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := [name for name in names if name not in NAMES]:
        raise OptionError(f"there is no workload {wrong[0]!r}\nhint: {', '.join(NAMES)}")
    return names or list(NAMES)


def show(screen: Screen, found: "list[Row]") -> None:
    drawn = compact(
        "workload", "answers", "times plain, 95 %", "worst stretch", "its rounds", "plain round",
        "rounds drafting", "all / some / none", "same text", "",
    )  # fmt: skip
    for row in found:
        worst = row.worst
        before, after = (percent(share) for share in row.drafting)
        drawn.add_row(
            row.workload,
            str(row.answers),
            interval(row.speed, 3),
            NONE if worst is None else f"{worst.ratio:.3f}",
            NONE if worst is None else f"{worst.first}-{worst.first + worst.rounds - 1} of {row.decoding}",
            number(row.plain_round, 3),
            before if after == NONE else f"{before}, then {after}",
            rounds_cell(row.rounds),
            f"{row.identical}/{row.answers}",
            "FAIL" if row.failures else "ok",
        )
    for column in drawn.columns:
        column.no_wrap = True
    screen.show(drawn)
    screen.line(
        "times plain: seconds of plain decoding over seconds of the recipe, prompts included\n"
        "worst stretch: the same of more than 50 decoding rounds in a row, by median costs, where it is least\n"
        "plain round: seconds of a round without a draft over those of plain decoding's\n"
        "rounds drafting: share of the decoding rounds, then: after the fault; all / some / none: of their draft accepted"
    )
    for row in found:
        for kind, several in (("near tie", row.near), ("WRONG", row.wrong)):
            screen.lines(f"{row.workload}, answer {index}: {kind}: {each}" for index, each in several)
