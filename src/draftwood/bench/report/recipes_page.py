"""The table of all recipes as a page of Markdown: what each reached here, beside what its authors claim.

It is made from results logs alone, one for each temperature, so that it can be written again without a run.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood import recipes
from draftwood.bench.cells import NONE, interval, number, percent, rounds, same_text
from draftwood.bench.other_processes import BUSY
from draftwood.bench.spec.results_log import ResultsLog
from draftwood.bench.spec.run import PLAIN, Plan, results
from draftwood.bench.spec.summary import ALL
from draftwood.errors import DraftwoodError

SLOW = 0.9  # speed over plain decoding's below which a recipe is named as slow
HEADS = ("tokens per s", "speed-up, 95 %", "tokens per pass", "accepted", "rounds all / some / none", "same text")
ABOUT = """\
Every recipe as a user gets it: no option is chosen but what it cannot do without. All recipes and plain decoding answer
each question in turn, in one process; [the benchmark](../benchmark.md) explains the columns. The claims are the authors', on
their models and machines, so they stand here for orientation. *Same text*: answers equal to plain decoding's of those that
are compared. Above temperature 0 only a recipe whose rule uses plain decoding's draws must write the same text.
"""


def name_of(method: str) -> str:
    """The recipe of a method, without what it was given."""
    return recipes.parted(method)[0]


def given(method: str) -> list[str]:
    """What a recipe was given because it cannot do without: store=texts.store. Files by name, and no default of its own."""
    name, words = recipes.parted(method)
    known = recipes.options(name)
    pairs = [word.partition("=")[::2] for word in words]
    return [f"{key}={Path(value).name}" for key, value in pairs if str(known[key].default) != value]


def cells(found: Mapping[str, Any], method: str) -> tuple[str, ...]:
    """The figures of one recipe, under HEADS."""
    f = found["figures"][ALL][method]
    drafts = (number(f["tokens_per_pass"], 2), percent(f["acceptance"]), rounds(f["rounds"]))
    same = f"{f['failures']} FAILED" if f["failures"] else same_text(f, method in found["lossy"])
    return (number(f["tokens_per_second"], 1), interval(f["speed_up"]), *drafts, same)


def slow(found: Mapping[str, Any], methods: Sequence[str]) -> list[str]:
    """Recipes that are below SLOW times plain decoding."""
    ratios = {name_of(name): found["figures"][ALL][name]["speed_up"] for name in methods}
    return [name for name, ratio in ratios.items() if ratio is not None and ratio["value"] < SLOW]


def claim(name: str) -> str:
    """The authors' claim; none for a recipe that is not installed any more."""
    try:
        return recipes.paper(name).claim or NONE
    except DraftwoodError:
        return NONE


def recipes_page(runs: Sequence[tuple[Plan, ResultsLog]]) -> str:
    """Markdown of one or more runs, each at another temperature."""
    found = [results(plan, log) for plan, log in runs]
    parts = ["# Every recipe, beside its paper's claim\n", *_provenance(runs, found), ABOUT, *_overview(runs, found)]
    for (plan, _), figures in zip(runs, found, strict=True):
        parts += _details(plan, figures)
    return "\n".join(parts)


def _overview(runs: Sequence[tuple[Plan, ResultsLog]], found: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each recipe: the claim, and the speed-up at each temperature. Those without a row say why."""
    methods: dict[str, dict[int, str]] = {}
    left_out: dict[str, str] = {}
    for place, (plan, log) in enumerate(runs):
        left_out |= log.provenance.get("left_out", {})
        for method in plan.methods:
            methods.setdefault(name_of(method), {})[place] = method
    heads = ("recipe", "the authors' claim", *(f"speed-up, 95 %, {_kind(plan)}" for plan, _ in runs), "remarks")
    lines = []
    for name in sorted({*methods, *left_out}):
        own = methods.get(name, {})
        ratios = [
            interval(found[i]["figures"][ALL][own[i]]["speed_up"]) if i in own else NONE for i in range(len(runs))
        ]
        used = sorted({word for method in own.values() for word in given(method)})
        remark = "plain decoding" if name == PLAIN else f"with {', '.join(used)}" if used else ""
        lines.append((_link(name), claim(name), *ratios, remark if own else f"no row: {left_out[name]}"))
    return ["## Speed-up over plain decoding\n", _table(heads, lines)]


def _details(plan: Plan, found: Mapping[str, Any]) -> list[str]:
    title = f"## {_kind(plan)[0].upper()}{_kind(plan)[1:]}\n"
    lines = [(_link(name_of(method)), *cells(found, method)) for method in sorted(plan.methods)]
    flagged, apart = slow(found, plan.methods), found["not_compared"]
    said = f"Below {SLOW:g} times plain decoding: {', '.join(flagged) or 'none'}."
    other = [f"- {name_of(name)}: texts are not compared: {why}" for name, why in sorted(apart.items())]
    return [title, _table(("recipe", *HEADS), lines), f"{said}\n", *([*other, ""] if other else [])]


def _provenance(runs: Sequence[tuple[Plan, ResultsLog]], found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Command, commit, machine and foreign load of each run."""
    commands = dict.fromkeys(_command(log.provenance["command"]) for _, log in runs if "command" in log.provenance)
    lines = [*(f"    {command}" for command in commands), ""]
    for (plan, log), figures in zip(runs, found, strict=True):
        s, known = plan.settings, {**log.settings, **log.provenance}
        device = "" if known.get("device") in (None, "cpu") else f" on {known['device']}"
        asked = f"{len(log.done)} questions, {s.max_tokens} tokens, seed {s.seed}"
        lines.append(
            f"- {_kind(plan)}: {s.model}, {figures['precision'][PLAIN]}{device}, {asked}; commit {known.get('commit')}, "
            f"{known.get('cpu')}, {s.threads} threads, torch {known.get('torch')}, "
            f"{str(known.get('time', 'time unknown'))[:10]}; {_load(figures['foreign_cores'])}"
        )
    return [*lines, ""]


def _load(foreign: Mapping[str, float] | None) -> str:
    if foreign is None:
        return "use of the CPU by other processes unknown"
    busy = " (**too busy: times are not valid**)" if foreign["mean"] >= BUSY else ""
    return f"other processes used {foreign['mean']:.2f} cores on average, {foreign['most']:.2f} at most{busy}"


def _command(line: str) -> str:
    """A command without the folders of the machine it ran on."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    return " ".join(Path(word).name if word.startswith("/") else word for word in words)


def _kind(plan: Plan) -> str:
    temperature = plan.settings.temperature
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def _link(name: str) -> str:
    """To the page of a recipe; plug-ins have none here."""
    try:
        ours = recipes.load(name).__name__.startswith(f"{recipes.__name__}.")
    except DraftwoodError:
        ours = False
    return f"[`{name}`](../papers/{name}.md)" if ours else f"`{name}`"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)
