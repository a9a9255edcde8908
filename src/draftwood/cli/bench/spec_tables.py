"""The tables of `draftwood bench spec`: speeds, drafting, against the peers, by task."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from draftwood.bench.cells import NONE, interval, number, percent
from draftwood.cli.bench.common.table_cells import compact

ALL = "overall"
LEGEND = (
    "tokens per s: mean of the questions' speeds, from the request to the last token; speed-up: over autoregressive's,",
    "with the 95 % interval of a paired bootstrap over questions; first token: median ms; ms per token, 99 %: over answers",
    "accepted: of drafted tokens; by position: of the rounds that drafted so deep, the % that accepted so deep;",
    "% of time: of decoding, in draft, target pass and elsewhere; same text: answers equal to autoregressive's",
)


def labels(found: dict[str, Any], methods: Sequence[str]) -> dict[str, str]:
    """Names for the tables: those of peers with what they compute in."""
    peers = {peer for ratios in found["against_peers"].values() for peer in ratios}
    return {name: f"{name} ({found['precision'][name]})" if name in peers else name for name in methods}


def speeds(found: dict[str, Any], methods: Sequence[str]) -> Table:
    """Speeds over all questions."""
    heads = ("tokens\nper s", "tokens\nper s\nafter\nfirst", "first\ntoken,\nms", "ms per\ntoken,\n99 %")
    drawn = compact("method", *heads, "speed-up, 95 %")
    for name, label in labels(found, methods).items():
        f = found["figures"][ALL][name]
        speeds = (number(f["tokens_per_second"], 1), number(f["decode_tokens_per_second"], 1))
        waits = (number(f["first_token_seconds_median"], 0, 1000), number(f["token_seconds_p99"], 1, 1000))
        drawn.add_row(label, *speeds, *waits, interval(f["speed_up"]))
    return drawn


def drafting(found: dict[str, Any], methods: Sequence[str]) -> Table:
    """What was drafted and accepted, where the time went, and whether the texts are plain decoding's."""
    heads = ("tokens\nper pass", "accepted", "by\nposition", "% of time:\npropose/\nscore/rest", "same\ntext")
    drawn = compact("method", *heads)
    for name, label in labels(found, methods).items():
        f = found["figures"][ALL][name]
        levels = [share for share in f["acceptance_by_position"][:3] if share is not None]
        positions = " ".join(f"{100 * share:.0f}" for share in levels) or NONE
        accepted = (number(f["tokens_per_pass"], 2), percent(f["acceptance"]), positions)
        same = "LOSSY" if name in found["lossy"] else percent(f["same_text_share"])
        drawn.add_row(label, *accepted, _times(f["shares"]), same)
    return drawn


def _times(shares: dict[str, float]) -> str:
    if not shares:
        return NONE
    propose, score = shares.get("propose", 0.0), shares.get("score", 0.0)
    return "/".join(f"{100 * share:.0f}" for share in (propose, score, 1 - propose - score))


def against(found: dict[str, Any]) -> Table | None:
    """Each of our methods over the fastest of each engine: above 1, ours is faster."""
    others = labels(found, found["rivals"])
    if not others:
        return None
    drawn = compact("ours over", *others.values())
    for name, ratios in found["against_peers"].items():
        drawn.add_row(name, *(interval(ratios[other]) for other in others))
    return drawn


def prompt_line(found: dict[str, Any], ours: str) -> str | None:
    """How fast plain decoding reads prompts, and how fast each peer does."""
    figures, ratios = found["figures"][ALL], found["prompts_against_peers"]
    if not ratios:
        return None
    rate = number(figures[ours]["prompt_tokens_per_second"], 0)
    others = [
        f"{name} {number(figures[name]['prompt_tokens_per_second'], 0)} (ours over it {interval(each)})"
        for name, each in ratios.items()
    ]
    return f"prompt tokens per s, up to the first token: {ours} {rate}, {', '.join(others)}"


def by_task(found: dict[str, Any], methods: Sequence[str]) -> Table:
    """Speed-up over plain decoding by task, and how many questions each has."""
    tasks = [task for task in found["figures"] if task != ALL]
    drawn = compact("speed-up", *(task.replace("_", " ") for task in tasks), ALL)
    for name, label in labels(found, methods).items():
        ratios = [found["figures"][task][name]["speed_up"] for task in (*tasks, ALL)]
        drawn.add_row(label, *(number(None if ratio is None else ratio["value"], 2) for ratio in ratios))
    counts = [next(iter(found["figures"][task].values()))["questions"] for task in (*tasks, ALL)]
    drawn.add_row("questions", *map(str, counts))
    return drawn


def device_line(found: dict[str, Any], peers: Sequence[str]) -> str | None:
    """The peers that run on another device than our recipes. A peer that failed to load ran nowhere."""
    ours, others = _apart(found["device"], peers, "on", "unknown")
    return f"our recipes run on {ours}, {others}" if others else None


def precision_line(found: dict[str, Any], peers: Sequence[str]) -> str | None:
    """The peers that compute in another precision than our recipes."""
    ours, others = _apart(found["precision"], peers, "in")
    why = "the ratio compares engines as they are used, not the same arithmetic"
    return f"our recipes compute in {ours}, {others}: {why}" if others else None


def _apart(facts: dict[str, str], peers: Sequence[str], word: str, ignored: str = "") -> tuple[str, str]:
    """The fact of our recipes, and the peers with another one, as text."""
    ours = next(fact for name, fact in facts.items() if name not in peers)
    return ours, ", ".join(f"{name} {word} {facts[name]}" for name in peers if facts[name] not in (ours, ignored))
