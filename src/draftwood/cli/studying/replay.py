"""`draftwood replay FILE`: what another tree, drafter or machine would have given on recorded rounds."""

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.bench.cells import number
from draftwood.cli import open_llm, options
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.screen import Screen

if TYPE_CHECKING:
    from draftwood.bench.trace.costs import Costs
    from draftwood.bench.trace.summary import Summary
    from draftwood.bench.trace.trace import Trace
    from draftwood.models.loading.load import Loaded


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `--trace FILE` has recorded.")],
    recipe: Annotated[
        list[str] | None,
        typer.Option("--recipe", "-r", metavar="NAME[:OPTIONS]", help="Another recipe on the same text. Repeatable."),
    ] = None,
    cut: Annotated[
        list[str] | None,
        typer.Option("--cut", metavar="SIZE", help="Smaller recorded trees, e.g. nodes=4:depth=2. Repeatable."),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            "--cost",
            help="Times of another machine: a file of timed rounds, `machine` for what is remembered here, or "
            "milliseconds: 'pass=1:4.9,2:5.7,8:9.2 draft=0.6 rest=0.4'. Default: those of the trace.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The recorded model, for drafters that need it.")
    ] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """What another tree, drafter or machine would have given on recorded rounds.

    Drafters without a model are simulated on the recorded text; no model is loaded. Others are run with the model on the
    recorded prompts. Recipes must have the rule match, or the trace temperature 0: then drafts never change the text.
    """
    for name in recipe or ():
        open_llm.recipe_options(name.partition(":")[0], _words(name))

    from draftwood.bench.trace.costs import chosen, fitted
    from draftwood.bench.trace.cuts import cut_of, cut_trees
    from draftwood.bench.trace.simulate import PLAIN, simulate, simulated_recipe
    from draftwood.bench.trace.summary import measured, priced
    from draftwood.bench.trace.trace import read
    from draftwood.models.loading.load import check_device

    check_device(device, dtype)
    sizes = [cut_of(each) for each in cut or ()]
    trace = read(file)
    header = trace.header
    own = costs = fitted(trace.rounds)
    if cost is not None:
        costs = chosen(cost, header.fingerprint, header.backend).with_draft_of(own)
    found = [
        measured(header.spelt, trace.rounds),
        priced(header.spelt, "replayed", trace.rounds, costs),
        *(cut_trees(trace, each, costs) for each in sizes),
    ]
    loaded: list[Loaded] = []
    for name in (PLAIN, *(recipe or ())):
        built = simulated_recipe(name, trace)
        simulated = simulate(name, built, trace, costs) if built is not None else None
        found.append(simulated or _run(name, trace, costs, loaded, model, dtype, device))
    plain = found.pop(2 + len(sizes))
    if json:
        rows = [each.record(None if cost and each is found[0] else plain) for each in (*found, plain)]
        print(jsonlib.dumps({"trace": header.line(), "costs": costs.origin, "results": rows}))
    else:
        show(Screen(), trace, costs, found, plain, other_machine=cost is not None)


def _words(name: str) -> list[str]:
    from draftwood import recipes

    return recipes.parted(name)[1]


def _run(
    name: str, trace: "Trace", costs: "Costs", loaded: "list[Loaded]", model: str | None, dtype: str, device: str
) -> "Summary":
    from draftwood.bench.trace.simulate import need_oracle, run_with_model
    from draftwood.models.loading.load import load

    need_oracle(trace)  # before the weights are read
    if not loaded:
        loaded.append(load(model or trace.header.model, dtype=dtype, device=device))
    return run_with_model(name, trace, costs, loaded[0])


def show(
    screen: Screen,
    trace: "Trace",
    costs: "Costs",
    found: "list[Summary]",
    plain: "Summary",
    *,
    other_machine: bool = False,
) -> None:
    """The table and what the reader must know about it. `other_machine`: recorded times have no ratio to plain decoding."""
    header, count = trace.header, len(trace.requests)
    screen.line(
        f"{count} request{'s'[: count - 1]}, {trace.num_tokens} tokens, recorded with {header.spelt} on "
        f"{header.model or 'a model'} ({header.backend}, {header.machine.get('cpu', 'unknown machine')})"
    )
    if trace.unfinished:
        screen.line(f"{trace.unfinished} of them had not ended when the recording stopped")
    drawn = compact(
        "", "how", "passes", "tokens per pass", "all / some / none", "drafted", "ms per token", "times plain"
    )
    for each in (*found, plain):
        drawn.add_row(
            each.name,
            each.how,
            f"{each.passes:.0f}",
            f"{each.tokens_per_pass:.3f}",
            " / ".join(f"{n:.0f}" for n in each.rounds),
            f"{each.drafted:.0f}",
            number(each.seconds_per_token, 2, 1000),
            number(None if other_machine and each is found[0] else each.ratio(plain), 2),
        )
    screen.line()
    screen.show(drawn)
    screen.line()
    screen.line(f"costs: {costs.origin}; times are of rounds that only decode, prompts are left out")
    if not header.on_host:
        screen.line(
            "the recorded machine has an accelerator: passes are enqueued, so their times are only known together"
        )
    for each in (*found, plain):
        screen.lines(f"{each.name}: {note}" for note in each.notes)
