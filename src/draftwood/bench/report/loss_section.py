"""The losing cases of a report: for each method its slowest questions against plain decoding, and where the time went."""

from collections.abc import Mapping, Sequence

from draftwood.bench.cells import rounds
from draftwood.bench.report.losses import Loss
from draftwood.bench.report.markup import Markup, element, join
from draftwood.bench.report.sections import scrolling, section
from draftwood.bench.report.time_parts import SECTIONS, seconds_by_part
from draftwood.bench.report.time_plot import pair_of_bars, time_legend

MOST = 10  # questions shown for each method
START = 160  # characters of a prompt
HEADS = ("question", "prompt", "speed over plain", "time, ms", "plain, ms", "rounds all / some / none")
NAMED = 4  # parts whose difference is named: those that matter most


def losing_cases(lost: Mapping[str, Sequence[Loss]], answered: Mapping[str, int]) -> Markup:
    """`lost`: by method; `answered`: questions that both it and plain decoding answered."""
    said = (
        f"Questions that a method answers at a lower speed than plain decoding, at most {MOST} for each method, the slowest "
        "first. The upper bar is the method's time, the lower one plain decoding's on the same question; below them, where "
        "it needed more time for as many tokens and where it saved some."
    )
    parts = [part for part in SECTIONS if any(part in _seconds(loss) for each in lost.values() for loss in each)]
    body = [_method(name, found, answered[name]) for name, found in lost.items()]
    return section("losses", "Losing cases", element("p", said), time_legend(parts), *body)


def _seconds(loss: Loss) -> dict[str, float]:
    return {**seconds_by_part(loss.plain), **seconds_by_part(loss.own)}


def _method(name: str, found: Sequence[Loss], answered: int) -> Markup:
    if not found:
        return element("p", f"{name}: slower on none of {answered} questions.", class_="note")
    longest = max(max(loss.own.seconds, loss.plain.seconds) for loss in found[:MOST])
    heads = [element("th", head, scope="col", class_="text" if head == "prompt" else None) for head in HEADS]
    last = element("th", "where the time went", scope="col", class_="text")
    lines = [_line(loss, longest) for loss in found[:MOST]]
    whole = element("table", element("thead", element("tr", *heads, last)), element("tbody", *lines))
    title = (
        f"{name}: slower on {len(found)} of {answered} questions, at worst {found[0].ratio:.2f} times plain decoding"
    )
    inside = scrolling(whole, f"Losing cases of {name}, a table")
    return element("details", element("summary", title), inside, open_="")


def _line(loss: Loss, longest: float) -> Markup:
    own, plain = loss.own, loss.plain
    known = own.prompt[:START] + ("…" if len(own.prompt) > START else "")
    prompt = element("bdi", known) if known else "not in this log"
    tokens = f"{own.emitted}" if own.emitted == plain.emitted else f"{own.emitted} (plain: {plain.emitted})"
    about = f"{own.task.replace('_', ' ')}, {own.prompt_tokens} + {tokens} tokens"
    question = join((own.question, element("br"), element("span", about, class_="note")))
    bars = pair_of_bars(seconds_by_part(own), seconds_by_part(plain), longest)
    cells = (f"{loss.ratio:.2f}", f"{1000 * own.seconds:.0f}", f"{1000 * plain.seconds:.0f}", rounds(own.rounds))
    return element(
        "tr",
        element("th", question, scope="row"),
        element("td", prompt, class_="text"),
        *(element("td", cell) for cell in cells),
        element("td", bars, more_time(loss), class_="text"),
    )


def more_time(loss: Loss) -> str:
    """score +12.1 ms, propose +3.0 ms, first token -0.8 ms"""
    most = sorted(loss.more, key=lambda part: -abs(loss.more[part]))[:NAMED]
    return ", ".join(f"{part} {1000 * seconds:+.1f} ms" for part, seconds in loss.more.items() if part in most)
