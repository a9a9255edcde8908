"""A report: one HTML page of a run that needs no network, no script and no other file.

All text of questions, models and methods is escaped. The policy in its head allows one style sheet, named by its hash, and
nothing else: no script, no image, no font, no request. So even an element that slipped through would do nothing.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood.bench.other_processes import BUSY
from draftwood.bench.report import sections
from draftwood.bench.report.loss_section import losing_cases
from draftwood.bench.report.losses import losses
from draftwood.bench.report.markup import Markup, element, join
from draftwood.bench.spec.results_log import ResultsLog
from draftwood.bench.spec.run import PLAIN, Plan, results
from draftwood.bench.spec.summary import ALL

STYLE = Path(__file__).with_name("report.css")
TITLE = "draftwood: speed of recipes"
SECTIONS = {"summary": "Summary", "speeds": "Tokens per second", "acceptance": "Acceptance", "time": "Time by part"}


def write_report(file: Path, plan: Plan, log: ResultsLog) -> None:
    file.write_text(report(plan, log), encoding="utf-8")


def report(plan: Plan, log: ResultsLog) -> str:
    """The page of the finished questions of a log."""
    found, answers = results(plan, log), log.answers()
    methods = _by_speed(found, plan.methods)
    lost = {name: losses(answers, name, PLAIN) for name in methods if name != PLAIN}
    pairs = {name: (found["figures"][ALL][name]["speed_up"] or {}).get("pairs", 0) for name in lost}
    body = (
        sections.summary(found, methods, lost),
        sections.speeds(found["figures"], methods, PLAIN),
        sections.acceptance(found["figures"][ALL], methods),
        sections.times(answers, methods),
        losing_cases(lost, pairs),
    )
    links = [element("li", element("a", name, href=f"#{place}")) for place, name in _places()]
    head = element(
        "header",
        element("h1", TITLE),
        element("p", _lead(plan, found, len(log.done)), class_="lead"),
        *(element("p", text, class_="warning") for text in _warnings(found)),
        element("nav", element("ul", *links), aria_label="Sections"),
    )
    return page(TITLE, head, element("main", *body), element("footer", *_notes(found, plan), _provenance(log)))


def page(title: str, *body: str) -> str:
    """A whole document around its body."""
    style = STYLE.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="referrer", content="no-referrer"),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n"


def _places() -> list[tuple[str, str]]:
    return [*SECTIONS.items(), ("losses", "Losing cases"), ("provenance", "Provenance")]


def _by_speed(found: Mapping[str, Any], methods: Sequence[str]) -> list[str]:
    """The fastest first, so that every plot has the same order."""
    return sorted(methods, key=lambda name: -(found["figures"][ALL][name]["tokens_per_second"] or 0.0))


def _lead(plan: Plan, found: Mapping[str, Any], questions: int) -> str:
    s, plain = plan.settings, plan.settings.methods[0]
    where = "" if found["device"][plain] in ("cpu", "unknown") else f" on {found['device'][plain]}"
    return (
        f"{s.model}, {questions} question{'' if questions == 1 else 's'}, at most {s.max_tokens} tokens, temperature "
        f"{s.temperature:g}, {s.threads} threads, {found['precision'][plain]}{where}. Every method answered a question "
        "before the next one was asked."
    )


def _warnings(found: Mapping[str, Any]) -> list[str]:
    """What spoils the numbers."""
    said, foreign = [], found["foreign_cores"]
    if foreign is not None and foreign["mean"] >= BUSY:
        cores = f"{foreign['mean']:.2f} cores on average and {foreign['most']:.2f} at most"
        said.append(f"Other processes used {cores}: times are not valid.")
    if failures := found["failures"]:
        first = failures[0]
        said.append(
            f"{len(failures)} answers failed and are left out; the first: {first['method']}, question {first['question']}: "
            f"{first['error']}"
        )
    different = {name: f["different"] for name, f in found["figures"][ALL].items() if f["different"]}
    return said + [f"{name}: {count} texts differ from plain decoding's." for name, count in different.items()]


def _notes(found: Mapping[str, Any], plan: Plan) -> list[Markup]:
    """Methods whose texts are not compared, and peers of another precision."""
    said = [f"{name}: texts are not compared: {why}." for name, why in found["not_compared"].items()]
    said += [f"{name} computes in {found['precision'][name]}; its text need not be equal." for name in plan.peers]
    return [element("p", text) for text in said]


def _provenance(log: ResultsLog) -> Markup:
    """Settings of the run, where it was measured, and how busy the machine was. An older log has settings only."""
    known = {**log.settings, **log.provenance}
    foreign = [m["foreign_cores"] for m in log.machine.values() if "foreign_cores" in m]
    if foreign:
        known["cores used by other processes"] = (
            f"{sum(foreign) / len(foreign):.2f} on average, {max(foreign):.2f} at most"
        )
    pairs = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in known.items()]
    entries = [join((element("dt", key), element("dd", value))) for key, value in pairs]
    return element("section", element("h2", "Provenance", id="provenance"), element("dl", *entries))
