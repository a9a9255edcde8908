"""The tables of `draftwood bench spec`: speeds, drafting, against the peers, by sub-task."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from draftwood.cli.screen import table

ALL = "overall"
NONE = "-"


def speeds(found: dict[str, Any], methods: Sequence[str]) -> Table:
    """How fast, over all questions. Times in milliseconds."""
    drawn = compact("method", "tok/s", "decode", "TTFT", "ms/tok", "p99", "speed-up, 95 %", "fail")
    for name in methods:
        f = found["figures"][ALL][name]
        drawn.add_row(
            name,
            number(f["tokens_per_second"], 1),
            number(f["decode_tokens_per_second"], 1),
            number(f["first_token_seconds_median"], 0, 1000),
            number(f["token_seconds_p50"], 1, 1000),
            number(f["token_seconds_p99"], 1, 1000),
            ratio(f["speed_up"]),
            str(f["failures"] or NONE),
        )
    return drawn


def drafting(found: dict[str, Any], methods: Sequence[str]) -> Table:
    """What was guessed, what was kept, where the time went, and whether it is still plain decoding's text."""
    drawn = compact("method", "t/pass", "acc.", "by pos.", "prop.", "score", "rest", "same", "ties")
    for name in methods:
        f = found["figures"][ALL][name]
        shares: dict[str, float] = f["shares"]
        rest = 1 - shares.get("propose", 0) - shares.get("score", 0) if shares else None
        levels = [share for share in f["acceptance_by_position"][:3] if share is not None]
        drawn.add_row(
            name,
            number(f["tokens_per_pass"], 2),
            percent(f["acceptance"]),
            " ".join(f"{100 * share:.0f}" for share in levels) or NONE,
            percent(shares.get("propose")),
            percent(shares.get("score")),
            percent(rest),
            "LOSSY" if name in found["lossy"] else percent(f["same_text_share"]),
            str(f["near_ties"] or NONE),
        )
    return drawn


def against(found: dict[str, Any]) -> Table | None:
    """Each of our methods over the fastest of each engine: above 1, ours is faster."""
    others: list[str] = found["rivals"]
    if not others:
        return None
    drawn = compact("ours over", *others)
    for name, row in found["against_peers"].items():
        drawn.add_row(name, *(ratio(row[other]) for other in others))
    return drawn


def by_task(found: dict[str, Any], methods: Sequence[str]) -> Table:
    """Speed-up over plain decoding by sub-task, and how many questions each has."""
    tasks = [task for task in found["figures"] if task != ALL]
    heads = [task.replace("_", " ") for task in tasks]
    drawn = compact("speed-up", *heads, ALL)
    for name in methods:
        drawn.add_row(
            name, *(ratio(found["figures"][task][name]["speed_up"], interval=False) for task in (*tasks, ALL))
        )
    counts = [next(iter(found["figures"][task].values()))["questions"] for task in (*tasks, ALL)]
    drawn.add_row("questions", *map(str, counts))
    return drawn


def compact(first: str, *numbers: str) -> Table:
    """A table whose names are not broken, with columns close together: eighty columns are few."""
    drawn = table(first, *numbers, numbers=set(numbers))
    drawn.padding = (0, 1, 0, 0)
    drawn.columns[0].no_wrap = True
    return drawn


def number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return NONE if value is None else f"{value * factor:.{digits}f}"


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f}%"


def ratio(value: dict[str, Any] | None, *, interval: bool = True) -> str:
    """1.24 0.87-1.46: the value, and the ends of its interval if there is one."""
    if value is None:
        return NONE
    said = f"{value['value']:.2f}"
    return f"{said} {value['low']:.2f}-{value['high']:.2f}" if interval and value["low"] is not None else said
