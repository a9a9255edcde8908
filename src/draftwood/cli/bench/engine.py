"""draftwood bench engine: the time of a round by part."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.bench.cells import interval
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import quarters
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.open_llm import PLAIN
from draftwood.cli.options import Device, Dtype
from draftwood.cli.options import temperatures as temperatures_of
from draftwood.cli.screen import Screen

if TYPE_CHECKING:
    from draftwood.bench.micro.engine import Cost
    from draftwood.bench.micro.host_reads import Reads

MOST_NODES = 255
NODES_HELP = "Also trees of so many nodes that cost nothing to draft, separated by commas; empty: none."


def engine(
    questions: shared.Questions,
    recipes: shared.Recipes = "autoregressive,prompt_lookup,speculative_sampling",
    count: shared.Count = 8,
    max_tokens: shared.MaxTokens = 48,
    temperature: shared.Temperatures = "0,1",
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by commas; at most 256.")] = "1,8",
    nodes: Annotated[str, typer.Option(help=NODES_HELP)] = "16",
    seed: int = 0,
    threads: shared.Threads = None,
    model: shared.Model = "smollm2",
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: shared.Out = None,
) -> None:
    """The time of a decoding round by part, and the share of it outside the model, greedy and at temperature 1."""
    from draftwood.bench.micro.engine import Case, measure, replay
    from draftwood.bench.micro.host_reads import reads_by_rule
    from draftwood.core import host
    from draftwood.core.sampling.params import SamplingParams

    shared.writable(out)
    names, temperatures = shared.recipe_names(recipes), temperatures_of(temperature)
    sizes = shared.whole_numbers("batches", batches, shared.MOST_SEQUENCES)
    trees = shared.whole_numbers("nodes", nodes, MOST_NODES) if nodes else []
    loaded, source, meter = shared.begin(model, dtype, device, threads)
    prompts = shared.read_prompts(loaded, questions, count)
    cases: list[Case] = []
    for each in temperatures:
        params = SamplingParams(temperature=each, seed=seed, max_tokens=max_tokens)
        known = {f"known text, {size} nodes": replay(loaded, prompts, params, size) for size in trees}
        plan = {**dict(zip(names, names, strict=True)), **known}
        # A batch is never larger than the number of prompts, so the table shows what was really decoded together.
        fitting = sorted({min(batch, len(prompts)) for batch in sizes})
        cases += [Case(name, recipe, params, batch) for batch in fitting for name, recipe in plan.items()]
    found = measure(loaded, cases, prompts, say=quarters("prompts"))
    source["machine_meanwhile"] = meter.read()
    screen = Screen()
    screen.line(
        f"decoding rounds, {len(prompts)} prompts, {max_tokens} tokens, {loaded.info.backend}; milliseconds per round"
    )
    show(screen, found)
    if not host.on_host(loaded.info.device):
        screen.line("on a GPU draft and pass are timed by marks in its own work, and the draft counts as a whole")
    reads = reads_by_rule()
    show_reads(screen, reads)
    screen.lines(shared.source_lines(source))
    rows = [asdict(cost) for cost in found]
    shared.save(out, {"provenance": source, "rows": rows, "host_reads": [each._asdict() for each in reads]})


def show_reads(screen: Screen, found: "list[Reads]") -> None:
    """What the rules would make an accelerator wait for."""
    batches = sorted({each.batch for each in found})
    drawn = compact("rule", *(f"batch {batch}" for batch in batches))
    for rule in dict.fromkeys(each.rule for each in found):
        drawn.add_row(rule, *(str(each.reads) for each in found if each.rule == rule))
    screen.line("host reads of one verify on an accelerator, trees of 64 nodes; the round reads the verdict once more")
    screen.show(drawn)


def show(screen: Screen, found: "list[Cost]") -> None:
    from draftwood.core.verdict import PARTS

    heads = ("temperature", "batch", "rounds", "tokens per pass", *PARTS, "draft passes", "total")
    drawn = compact("recipe", *heads, "outside the model, %, 95 %")
    for c in found:
        parts = [f"{ms:.2f}" for ms in (*(c.parts[part] for part in PARTS), c.draft, c.total)]
        case = (c.recipe, f"{c.temperature:g}", str(c.batch))
        drawn.add_row(*case, str(c.rounds), f"{c.tokens_per_pass:.2f}", *parts, interval(c.overhead, 1, 100))
    screen.show(drawn)
    for c in found:
        if c.recipe == PLAIN:
            kind = "greedy" if c.temperature == 0 else f"at temperature {c.temperature:g}"
            screen.line(f"plain decoding {kind}, batch {c.batch}: {interval(c.overhead, 1, 100)} % outside the model")
    screen.line(
        "outside the model: all of a round but target and draft passes; 95 % by bootstrap over blocks of 16 rounds"
    )
