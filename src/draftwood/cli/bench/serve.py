"""draftwood bench serve: speed and latency against the number of requests in flight."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.bench.cells import NONE, interval, number
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import quarters
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.options import Device, Dtype
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.serving.in_flight import Served

IN_FLIGHT_HELP = "Numbers of requests in flight, separated by commas; at most 256."
DEPTHS_HELP = "Chains of a fixed depth, separated by commas; 0, plain decoding, is always there."
LONGEST_HELP = "Questions whose prompt has more tokens are left out: all slots get room for the longest."


def serve(
    questions: Annotated[
        Path | None, typer.Option(help="Questions, one JSON object a line; a few built-in ones if left out.")
    ] = None,
    recipes: shared.Recipes = "smart_spec,tetris,auto",
    depths: Annotated[str, typer.Option(help=DEPTHS_HELP)] = "2,4,8",
    inner: Annotated[str, typer.Option(help="The recipe whose drafter makes the chains.")] = "auto",
    in_flight: Annotated[str, typer.Option("--in-flight", help=IN_FLIGHT_HELP)] = "1,2,4,8,16,32",
    repeats: Annotated[
        int, typer.Option(min=1, help="Blocks of requests that are measured, after one to warm up.")
    ] = 5,
    block: Annotated[
        int | None,
        typer.Option(min=1, help="Requests of a block; three times those in flight, at least 4, if left out."),
    ] = None,
    count: shared.Count = 64,
    longest: Annotated[int, typer.Option(min=1, help=LONGEST_HELP)] = 200,
    max_tokens: shared.MaxTokens = 64,
    temperature: shared.Temperature = 0.0,
    seed: int = 0,
    threads: shared.Threads = None,
    model: shared.Model = "smollm2",
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: shared.Out = None,
) -> None:
    """Tokens per second and mean latency of fixed and adaptive drafts, against the number of requests in flight.

    Cases take turns with the same requests, whose answers have from half to one and a half of --max-tokens; speed is that
    of full flight, without the end of a block. The interval of a speed is 95 % by bootstrap over paired blocks.
    """
    from draftwood.bench.serving.in_flight import cases, measure
    from draftwood.bench.spec.questions import chat_prompts, spread
    from draftwood.core.sampling.params import SamplingParams
    from draftwood.runners.open import runner_of
    from draftwood.sizing.sibling_acceptance import prompts as built_in

    shared.writable(out)
    names = shared.recipe_names(recipes) if recipes.strip() else []
    sizes = shared.whole_numbers("in-flight", in_flight, shared.MOST_SEQUENCES)
    chains = [] if depths.strip() in ("", "0") else shared.whole_numbers("depths", depths.removeprefix("0,"), 16)
    loaded, source, meter = shared.begin(model, dtype, device, threads)
    if questions is None:
        prompts = built_in(runner_of(loaded))
    else:
        prompts = chat_prompts(loaded.tokenizer, [q.turns[0] for q in shared.read_questions(questions)])
    fitting = spread([ids for ids in prompts if len(ids) <= longest], count)
    if not fitting:
        raise OptionError(f"no question has a prompt of at most {longest} tokens\nhint: raise --longest")
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    ways, found = cases(loaded, chains, inner, names), list["Served"]()
    for size in sizes:
        found += measure(
            loaded,
            ways,
            fitting,
            params,
            size,
            repeats,
            block or max(3 * size, 4),
            quarters(f"blocks, {size} in flight"),
        )
    source["machine_meanwhile"] = meter.read()
    screen = Screen()
    screen.line(f"{len(fitting)} questions, {max_tokens} tokens, {loaded.info.backend}; in pairs with plain decoding")
    show(screen, found)
    screen.lines(shared.source_lines(source))
    shared.save(out, {"provenance": source, "rows": [asdict(row) for row in found]})
    if temperature == 0 and any(row.identical < row.requests for row in found):
        raise typer.Exit(1)


def show(screen: Screen, found: "list[Served]") -> None:
    heads = ("case", "tokens per s", "latency, s", "tokens per pass", "drafted per pass", "speed, 95 %")
    drawn = compact("in flight", *heads, "same text", "saved, ms", "calibration error")
    for row in found:
        drawn.add_row(
            str(row.in_flight),
            row.case,
            f"{row.tokens_per_second:.1f}",
            f"{row.latency:.3f}",
            f"{row.tokens_per_pass:.2f}",
            f"{row.drafted_per_pass:.2f}",
            "1.00" if row.speed is None else interval(row.speed),
            f"{row.identical}/{row.requests}",
            f"{row.saved_ms:.0f}",
            NONE if row.calibration_error is None else number(row.calibration_error, 3),
        )
    screen.show(drawn)
    screen.line("speed: tokens per second over those of plain decoding; saved: of a request, as the engine counted it")
