"""Sections of a report: each plot, what it shows in a sentence, and the same numbers as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.bench.cells import NONE, interval, number, percent, rounds, same_text
from draftwood.bench.report.acceptance_plot import acceptance_plot, drafting
from draftwood.bench.report.losses import Loss
from draftwood.bench.report.markup import Markup, element, table
from draftwood.bench.report.speed_plot import speed_legend, speed_panel
from draftwood.bench.report.time_parts import SECTIONS, draft_per_token, per_token
from draftwood.bench.report.time_plot import time_legend, time_plot
from draftwood.bench.spec.answer import Answer
from draftwood.bench.spec.summary import ALL

Figures = Mapping[str, Mapping[str, Mapping[str, Any]]]  # task, method


def summary(found: Mapping[str, Any], methods: Sequence[str], lost: Mapping[str, Sequence[Loss]]) -> Markup:
    """One line for each method."""
    heads = (
        "method", "tokens per s", "speed-up, 95 %", "tokens per pass", "accepted", "rounds accepting all / some / none",
        "same text", "slower on",
    )  # fmt: skip
    lines = []
    for name in methods:
        f = found["figures"][ALL][name]
        slower = f"{len(lost[name])} of {f['questions'] - f['failures']}" if name in lost else NONE
        drafts = (number(f["tokens_per_pass"], 2), percent(f["acceptance"]), rounds(f["rounds"]))
        speeds = (number(f["tokens_per_second"], 1), interval(f["speed_up"]))
        lines.append((name, *speeds, *drafts, same_text(f, name in found["lossy"]), slower))
    return section("summary", "Summary", scrolling(table(heads, lines), "Summary, a table"))


def speeds(figures: Figures, methods: Sequence[str], baseline: str) -> Markup:
    """A panel for all questions and one for each task."""
    panels, lines = [], []
    for task, found in figures.items():
        asked = found[baseline]["questions"]
        name = f"{task.replace('_', ' ')}, {asked} question{'' if asked == 1 else 's'}"
        panels.append(
            element("figure", element("h3", name), speed_panel(name, found, methods, baseline), class_="panel")
        )
        for method in methods:
            f = found[method]
            lines.append((task, method, interval(f["tokens_per_second_interval"], 1), interval(f["speed_up"])))
    said = (
        "The mean of the questions' speeds, from the request to the last token, with the 95 % interval of a bootstrap over "
        "questions. The dashed line is plain decoding. The colour follows the interval of the paired speed-up in "
        "the table, not the intervals shown, which also hold how much the questions differ."
    )
    heads = ("task", "method", "tokens per s, 95 %", "speed-up, 95 %")
    parts = (element("div", *panels, class_="panels"), numbers(table(heads, lines), "Speeds by task"))
    return section("speeds", "Tokens per second", element("p", said), speed_legend(), *parts)


def acceptance(found: Mapping[str, Mapping[str, Any]], methods: Sequence[str]) -> Markup:
    """`found`: the figures over all questions."""
    shown = drafting(found, methods)
    if not shown:
        return section("acceptance", "Acceptance by depth", element("p", "No method drafted anything.", class_="note"))
    deepest = max(len(found[name]["acceptance_by_position"]) for name in shown)
    lines = []
    for name in shown:
        shares = found[name]["acceptance_by_position"]
        cells = [number(share, 1, 100) for share in shares] + [NONE] * (deepest - len(shares))
        lines.append((name, str(found[name]["drafted"]), str(found[name]["accepted"]), *cells))
    heads = ("method", "drafted", "accepted", *(f"depth {depth + 1}, %" for depth in range(deepest)))
    said = (
        "Of the rounds that drafted so deep, the percentage whose accepted path reached that depth. A method that sizes its "
        "drafts goes deep only where it expects to be right, so a deep cell may be stronger than the one before."
    )
    plot = scrolling(acceptance_plot(found, shown), "Acceptance by depth, a plot")
    return section(
        "acceptance", "Acceptance by depth", element("p", said), plot, numbers(table(heads, lines), "Acceptance")
    )


def times(answers: Sequence[Answer], methods: Sequence[str]) -> Markup:
    """Milliseconds per token of each method, by part."""
    by_method = {name: [a for a in answers if a.method == name] for name in methods}
    spent = {name: per_token(own) for name, own in by_method.items()}
    shown = [name for name in methods if spent[name]]
    parts = [part for part in SECTIONS if any(part in spent[name] for name in shown)]
    lines = []
    for name in shown:
        cells = [number(spent[name].get(part), 3, 1000) for part in parts]
        draft = number(draft_per_token(by_method[name]), 3, 1000)
        lines.append((name, number(sum(spent[name].values()), 3, 1000), *cells, draft))
    said = (
        "Milliseconds per emitted token over all questions. First token: until the first token is there, which is mostly "
        "reading the prompt. Then the parts of the rounds: plan the size of the draft, propose it, score it in one pass of "
        "the target, verify, commit to the caches, emit; other: between the rounds."
    )
    heads = ("method", "all, ms", *(f"{part}, ms" for part in parts), "of propose: draft passes, ms")
    plot = element("figure", scrolling(time_plot(spent, shown), "Time by part, a plot"), class_="panel")
    whole = numbers(table(heads, lines), "Time by part")
    return section("time", "Time by part", element("p", said), time_legend(parts), plot, whole)


def section(name: str, title: str, *parts: str) -> Markup:
    return element("section", element("h2", title, id=name), *parts, aria_labelledby=name)


def scrolling(inside: Markup, name: str) -> Markup:
    """What may be wider than the page; the keyboard can reach and scroll it."""
    return element("div", inside, class_="scroll", tabindex="0", role="region", aria_label=name)


def numbers(whole: Markup, name: str) -> Markup:
    """The table of a plot."""
    return element("details", element("summary", "The numbers as a table"), scrolling(whole, f"{name}, a table"))
