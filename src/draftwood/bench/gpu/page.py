"""The page of `bench gpu`: what was measured so far, each part with its command. Parts may come from several runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftwood.bench.cells import NONE, interval, number
from draftwood.errors import OptionError

INTRODUCTION = """# On a GPU

Written by `draftwood bench gpu`; every part can be run alone by its name. Floor: the bytes that a pass reads (weights once,
the entries of every sequence) at the speed of a copy within the device's memory. `kernels`: our own, `stock`: torch
operations in captured graphs; - where a path does not run. Times are medians."""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def passes_table(rows: Sequence[Mapping[str, Any]]) -> str:
    drawn: list[list[str]] = []
    for row in rows:
        case, ms = row["case"], row["ms"]
        known = [x for x in ms.values() if x is not None]
        over = number(min(known) / row["floor"], 2) if known else NONE
        times = [number(ms.get(path), 2) for path in ("kernels", "stock")]
        drawn.append(
            [str(case["batch"]), str(case["context"]), str(case["nodes"]), number(row["floor"], 2), *times, over]
        )
    return table(
        ("sequences", "context", "nodes each", "floor, ms", "kernels, ms", "stock, ms", "over the floor"), drawn
    )


def speeds_table(rows: Sequence[Mapping[str, Any]]) -> str:
    drawn = [
        [
            row["recipe"],
            str(row["batch"]),
            number(row["tokens_per_second"], 0),
            number(row["tokens_per_pass"], 2),
            interval(row["over_plain"]),
        ]
        for row in rows
    ]
    return table(("recipe", "sequences", "tokens/s", "tokens per pass", "over plain, 95 %"), drawn)


def outside_table(rows: Sequence[Mapping[str, Any]]) -> str:
    drawn = [
        [
            row["recipe"],
            str(row["batch"]),
            number(row["ms"], 2),
            interval(row["outside"], 1, 100),
            number(row["outside_kernels"], 1, 100),
        ]
        for row in rows
    ]
    share = "outside draft and target passes, %, 95 %"
    return table(("recipe", "sequences", "round, ms", share, "no kernel runs, % of answers"), drawn)


DRAWN: dict[str, tuple[str, Callable[[Sequence[Mapping[str, Any]]], str]]] = {
    "pass": ("A pass of an 8B shape, random weights", passes_table),
    "small": ("A pass of the embedded model", passes_table),
    "texts": ("Answers of the embedded model", speeds_table),
    "expanded": ("Answers of the embedded model in the 8B shape, with its expanded head", speeds_table),
    "depths": ("Fixed depths", speeds_table),
    "outside": ("Time of a round outside the model", outside_table),
}


def page(results: Mapping[str, Any]) -> str:
    """Markdown of all parts that have results, in their order."""
    parts = [INTRODUCTION]
    for name, (title, draw) in DRAWN.items():
        if name in results:
            found = results[name]
            source = found["provenance"]
            said = f"{source['device']}, torch {source['torch']}, {source['commit']}, {source['time']}"
            speed = found.get("bytes_per_second")
            more = "" if speed is None else f"; a copy within the device's memory: {speed / 1e12:.2f} TB/s"
            parts.append(f"## {title}\n\n`{source['command']}` ({said}{more})\n\n{draw(found['rows'])}")
    return "\n\n".join(parts) + "\n"


def keep(folder: Path, name: str, found: Mapping[str, Any]) -> Path:
    """Add a part to the results of a folder, in place of an earlier run of it, and write the page anew."""
    folder.mkdir(parents=True, exist_ok=True)
    held = folder / "gpu.json"
    try:
        results = json.loads(held.read_text()) if held.exists() else {}
    except ValueError as error:
        raise OptionError(f"{held} holds no results: {error}\nhint: another --out") from None
    results[name] = found
    held.write_text(json.dumps(results, indent=1) + "\n")
    written = folder / "gpu.md"
    written.write_text(page(results))
    return written
