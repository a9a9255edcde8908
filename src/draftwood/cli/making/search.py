"""draftwood search: what a recipe needs that is found by trying, not by training."""

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.cli.answering.questions import decoded
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import say
from draftwood.cli.options import Device, Dtype, Seed
from draftwood.cli.screen import GREEN, Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.core.protocols import Runner

TIMED = 10  # of the best sets
BUDGET_HELP = "Sets that are tried, those of an interrupted search counted."
LOG_HELP = (
    "Every set that was tried; a search that was interrupted goes on from it. Default: OUT with the ending .jsonl."
)
PROMPTS_HELP = "Prompts of your own, one on each line. Default: six that ship with draftwood."
DEPTH_HELP = "The longest chain that is tried."
TOKENS_HELP = "Tokens of an answer while acceptance is measured."


def layers(
    out: Annotated[Path, typer.Option(help="The file to write, for draft_and_verify's option skip.")],
    model: shared.Model = "smollm2",
    budget: Annotated[int, typer.Option(help=BUDGET_HELP)] = 200,
    prompts: Annotated[Path | None, typer.Option(help=PROMPTS_HELP)] = None,
    depth: Annotated[int, typer.Option(min=1, max=16, help=DEPTH_HELP)] = 4,
    max_tokens: Annotated[int, typer.Option(min=4, max=4096, help=TOKENS_HELP)] = 32,
    log: Annotated[Path | None, typer.Option(help=LOG_HELP)] = None,
    seed: Seed = 0,
    threads: shared.Threads = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Which sub-layers of a model its drafts can leave out.

    Tries sets of skipped attentions and MLPs: for each one the target answers some prompts, and the accepted tokens together
    with measured times predict its tokens a second. The best ten are then timed beside plain decoding, and the fastest is
    written.
    """
    from draftwood.drafters.layers.skip_set import SkipSet, write_file
    from draftwood.drafters.nets.files.find import fingerprint
    from draftwood.runners.open import runner_of
    from draftwood.search.skip_objective import measure, predict
    from draftwood.search.skip_search import Log, Tried, evaluations
    from draftwood.search.skip_timing import time_best
    from draftwood.search.sub_layer_costs import round_costs

    if budget < 1:
        raise OptionError(f"--budget {budget}: no set would be tried\nhint: at least 1; 200 without it")
    shared.writable(out)
    log = out.with_suffix(".jsonl") if log is None else log
    shared.writable(log)
    shared.writable(out.with_name(out.name + ".partial"))
    files = {"--out": out, "--log": log} | ({} if prompts is None else {"--prompts": prompts})
    places = [path.resolve() for path in files.values()]
    if len(set(places)) < len(places) or out.resolve().with_name(out.name + ".partial") in places:
        named = ", ".join(f"{option} {path}" for option, path in files.items())
        raise OptionError(f"one file has two uses: {named}\nhint: a file of its own for each")
    loaded, source, meter = shared.begin(model, dtype, device, threads)
    target = runner_of(loaded)
    if not target.info.layer_ranges:
        raise OptionError(f"{target.info.name or 'this model'} runs all of its layers or none\nhint: without hf:")
    asked = _prompts(prompts, target)
    longest, most = max(map(len, asked)), target.info.max_positions - 2 * (max_tokens + depth)
    if longest > most:
        where = "the prompts that ship" if prompts is None else prompts
        raise OptionError(
            f"a prompt of {where} has {longest} tokens, with its answer this model holds {max(most, 0)}\n"
            "hint: --prompts FILE with shorter ones, or a smaller --max-tokens"
        )
    about = {"target": fingerprint(target), "backend": target.info.backend, "depth": depth, "max_tokens": max_tokens}
    about |= {"seed": seed, "prompts": sha256(json.dumps(asked).encode()).hexdigest()[:16]}
    book = Log(log, about, target.info.num_layers, lambda: round_costs(target, depth))
    if book.tried:
        say(f"goes on after {len(book.tried)} sets of {log}")

    def evaluate(skip: SkipSet) -> Tried:
        measured = measure(target, skip, asked, depth, max_tokens)
        return Tried(skip, measured, predict(measured, skip, book.costs))

    try:
        with book.alone():
            for each in evaluations(book, target.info.num_layers, budget, seed, evaluate):
                best = max(book.tried, key=lambda t: t.predicted.tokens_per_second).predicted.speed_up
                say(f"{len(book.tried)}/{budget} sets: {each.predicted.speed_up:.3f}x predicted, the best {best:.3f}x")
    except KeyboardInterrupt:
        say(f"interrupted: the same command goes on after {len(book.tried)} sets")
        raise
    ranked = sorted(book.tried, key=lambda t: -t.predicted.tokens_per_second)[:TIMED]
    timed = time_best(target, ranked, asked, 2 * max_tokens, say)
    fastest, screen = timed[0], Screen()
    if target.info.batch_invariant and not all(each.same_text for each in timed):  # floats may differ at near ties
        raise OptionError("a draft changed the text of an answer\nhint: report this; nothing was written")
    screen.line(f"{len(book.tried)} sets tried, {len(asked)} prompts, {target.info.backend}")
    for each in timed:
        tried = each.tried
        screen.line(
            f"{each.speed_up:.3f}x measured, {tried.predicted.speed_up:.3f}x predicted, chains of {tried.predicted.depth}, "
            f"first token right {tried.measured.survival[0]:.0%}, {len(tried.skip)} sub-layers left out: {tried.skip}"
        )
    screen.lines(shared.source_lines({**source, "machine_meanwhile": meter.read()}))
    more = {"tried": len(book.tried), "speed_up": round(fastest.speed_up, 3), **fastest.tried.record()}
    write_file(out, target, fastest.tried.skip, more)
    screen.line(f"{out}: {len(fastest.tried.skip)} of {2 * target.info.num_layers} sub-layers left out", GREEN)
    if fastest.speed_up < 1:
        screen.line(
            "no set was faster than plain decoding: with this one draft_and_verify may decode plainly, and says so"
        )


def _prompts(path: Path | None, target: "Runner") -> list[list[int]]:
    """Prompts in the target's own template."""
    from draftwood.sizing.sibling_acceptance import prompts

    if path is None:
        return prompts(target)
    tokenizer = target.info.tokenizer
    if tokenizer is None:
        raise OptionError(f"--prompts {path}: this model has no tokenizer\nhint: load it by name")
    try:
        lines = [line.strip() for line in decoded(path.read_bytes(), str(path)).splitlines() if line.strip()]
    except OSError as error:
        raise OptionError(f"--prompts {path} cannot be read: {error.strerror or error}") from None
    if not lines:
        raise OptionError(f"--prompts {path} has no prompt\nhint: one on each line")
    return [tokenizer.encode_chat([{"role": "user", "content": line}]) for line in lines]


app = typer.Typer(help="Find what a recipe needs by trying it.", no_args_is_help=True, rich_markup_mode=None)
app.command()(layers)


@app.callback()
def search() -> None:
    """Find what a recipe needs by trying it."""
