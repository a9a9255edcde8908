"""`draftwood explain PROMPT`: the numbers behind what `auto` chose, round by round, and what would change its mind."""

import json as jsonlib
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli import open_llm, options
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.trace.choices import Choice
    from draftwood.bench.trace.records import Record
    from draftwood.core.round import Round
    from draftwood.core.verdict import Outcome
    from draftwood.drafters.combine.report import Outlook
    from draftwood.drafters.combine.route import Route
    from draftwood.llm import LLM

SIZES = (1, 2, 4, 8, 16)  # of copies, for which the least number of accepted tokens is shown


def explain(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="A question, asked by the chat template.")],
    model: options.Model = "smollm2",
    option: options.RecipeOptions = None,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Why `auto` chose what it chose: costs, expected tokens a second of each alternative, and where the choice turns."""
    options.sampling(max_tokens=max_tokens, temperature=temperature, seed=seed)  # refused before the work
    llm = open_llm.open_llm(model, "auto", dtype=dtype, device=device, options=option or ())

    from draftwood.bench.trace.choices import choices
    from draftwood.bench.trace.recorder import Recorder
    from draftwood.bench.trace.records import RoundRecord
    from draftwood.drafters.combine.report import names
    from draftwood.drafters.combine.route import Route

    route = llm.recipe.drafter
    if not isinstance(route, Route):
        raise OptionError(f"auto chooses nothing for this model: it always uses {type(route).__name__}")
    rounds: list[RoundRecord] = []

    def keep(record: "Record") -> None:
        if isinstance(record, RoundRecord):
            rounds.append(record)

    open_llm.warm_up(llm)
    watched = Watched(llm, route)
    recorder = Recorder(keep)
    llm.record(recorder, watched)
    result = llm.chat(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
    recorder.flush()
    if result.error is not None:
        raise OptionError(f"the answer failed: {result.error}")
    found, last = choices(rounds, names(route)), watched.last
    if json:
        print(jsonlib.dumps(record_of(llm, route, found, last, result.tokens_per_pass)))
        return
    screen = Screen()
    show_available(screen, llm, route)
    show_rounds(screen, found)
    if last is None:
        screen.lines(("", "nothing was chosen: the answer ended with its first token"))
        return
    show_outlook(screen, route, last)


class Watched:
    """Keeps what the route expected after the last round, before the end of the request clears it."""

    def __init__(self, llm: "LLM", route: "Route") -> None:
        self.llm, self.route = llm, route
        self.last: Outlook | None = None

    def record(self, rnd: "Round", outcome: "Outcome") -> None:
        from draftwood.drafters.combine.report import outlook

        if rnd.batch:
            self.last = outlook(self.route, self.llm.engine.drafter_state, rnd) or self.last


def _costs(llm: "LLM") -> list[str]:
    """Files of timed rounds that this model has here, with what they are of and when they were written."""
    from draftwood.bench.trace.costs import remembered_files

    found: list[str] = []
    for path in remembered_files(llm.loaded.fingerprint, llm.loaded.info.backend):
        when = datetime.fromtimestamp(path.stat().st_mtime).astimezone().isoformat(sep=" ", timespec="minutes")
        found.append(f"{jsonlib.loads(path.read_text('utf-8'))['of']}, {when}, {path}")
    return found


def show_available(screen: Screen, llm: "LLM", route: "Route") -> None:
    from draftwood.drafters.nets.files.find import ships
    from draftwood.sizing.choose_route import HEAD

    head = ships(HEAD, llm.runner)
    copies = ", ".join(type(each).__name__ for each in route.retrievers)
    screen.line(f"{llm.loaded.name}, {llm.loaded.info.arithmetic}")
    screen.line(f"copies   {copies}: from the text")
    if route.model is None:
        screen.line("head     none ships for this model")
    else:
        screen.line(
            f"head     {type(route.model).__name__}, {head.name if head else 'weights of your own'}, {route.arm}"
        )
    screen.line("plain    always")
    costs = _costs(llm)
    screen.line(f"costs    {costs[-1] if costs else 'timed at this start, kept nowhere'}")


def show_rounds(screen: Screen, found: "list[Choice]") -> None:
    drawn = compact("chosen", "rounds", "drafted", "tokens per round", "ms per round", "tokens per second")
    for each in found:
        figures = (f"{each.drafted:.1f}", f"{each.tokens:.2f}", f"{1000 * each.seconds:.2f}", f"{each.rate:.0f}")
        drawn.add_row(each.name, str(each.rounds), *figures)
    screen.line()
    screen.line("what was done, in rounds that only decode")
    screen.show(drawn)


def show_outlook(screen: Screen, route: "Route", last: "Outlook") -> None:
    screen.line()
    screen.line("what is expected of the next round, by the costs above as this run corrected them; ratios count")
    drawn = compact("alternative", "accepted", "ms per round", "tokens per second", "times plain")
    drawn.add_row("plain", "", f"{1000 * last.seconds[0]:.2f}", f"{last.plain_rate:.0f}", "1.00")
    if (m := last.model) is not None:
        cells = f"{m.accepted:.2f}", f"{1000 * m.seconds:.2f}", f"{m.rate:.0f}"
        drawn.add_row("head", *cells, f"{m.rate / last.plain_rate:.2f}")
    screen.show(drawn)
    screen.line()
    screen.line("what would change the choice")
    screen.lines(turning_points(route, last))


def turning_points(route: "Route", last: "Outlook") -> list[str]:
    """One sentence for each alternative."""
    from draftwood.drafters.combine.route import HOTTEST, MARGIN

    said: list[str] = []
    m = last.model
    if route.model is not None and m is None:
        said.append(f"head: not asked above temperature {HOTTEST:g}, where its best tokens are seldom the emitted ones")
    elif m is not None:
        pays = m.rate > MARGIN * last.plain_rate
        said.append(
            f"head: {'pays' if pays else 'does not pay'} against plain decoding (from {MARGIN:g} times as fast on)"
        )
        most, least = last.most_draft_seconds() or 0.0, last.least_accepted(m.seconds)
        said.append(f"  it turns at {least:.2f} accepted tokens a draft; expected are {m.accepted:.2f}")
        turn = f"at {1000 * most:.2f} ms" if most > 0 else "nowhere, because its pass alone costs too much"
        said.append(f"  by the time of drafting it turns {turn}; expected are {1000 * m.draft_seconds:.2f} ms")
    sizes = [n for n in SIZES if n < len(last.seconds)]
    pays_from = ", ".join(f"{n}: {last.least_accepted(last.seconds[n]):.2f}" for n in sizes)
    said.append(f"copies: accepted tokens from which a copy of so many pays: {pays_from}")
    for each, corrected in zip(route.retrievers, last.corrected, strict=True):
        pairs = ", ".join(f"{100 * a:.0f} % -> {100 * b:.0f} %" for a, b in corrected)
        said.append(f"  chance of a copied token, as {type(each).__name__} says and as this text taught: {pairs}")
    return said


def record_of(
    llm: "LLM", route: "Route", found: "list[Choice]", last: "Outlook | None", tokens_per_pass: float
) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "model": llm.loaded.name,
        "backend": llm.loaded.info.backend,
        "head": None if route.model is None else type(route.model).__name__,
        "costs": _costs(llm),
        "tokens_per_pass": tokens_per_pass,
        "choices": [{**asdict(each), "tokens_per_second": each.rate} for each in found],
        "outlook": None if last is None else asdict(last),
        "tokens_per_second": {} if last is None else {"plain": last.plain_rate, "head": last.model and last.model.rate},
        "turning_points": [] if last is None else turning_points(route, last),
    }
