"""The tables of `draftwood bench rules`: one a cell for the screen, and trees by rules in Markdown."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from draftwood.cli.bench.table_cells import NONE, compact, interval, number

if TYPE_CHECKING:
    from draftwood.bench.study.rules import Cell, Claim, Line

ROOTS = "positions are those of the first rule's run; the other rules judged the same trees with coins of their own"


def said_of_cell(cell: "Cell") -> str:
    """The trees of a cell."""
    said = (
        f"{cell.tree}, {cell.drafter}, temperature {cell.temperature:g}: {cell.draw} tokens in {cell.shape}, "
        f"{cell.nodes:.1f} nodes, {cell.depth:.1f} levels, {cell.rounds} rounds, pass {number(cell.pass_ms, 1)} ms"
    )
    if cell.bound is None:
        return said
    most = "at most " if cell.loose else ""
    return f"{said}\nbest first level of any rule: {most}{interval(cell.bound)} at {cell.roots} positions"


def of_cell(cell: "Cell") -> Table:
    """Rule by rule."""
    base = cell.lines[0].rule
    drawn = compact("rule", "tokens per pass", f"over {base}", "of path", "first level", "formula", "ms", "% of pass")
    for line in cell.lines:
        drawn.add_row(
            line.rule,
            interval(line.tokens),
            interval(line.over),
            interval(line.path),
            interval(line.first),
            number(line.expected, 2),
            f"{line.ms:.2f}",
            interval(line.share, 0, 100),
        )
    return drawn


def foot(cells: Sequence["Cell"], claim: "Claim", wrong: Sequence[str]) -> list[str]:
    """Results over all cells, and a legend."""
    roots = sum(cell.roots for cell in cells)
    exceeded = sum(cell.exceeded for cell in cells)
    samples = sum(len(cell.lines) for cell in cells if cell.roots)
    chance = sum(len(cell.above) for cell in cells)
    ahead = (
        f"Traversal and Block at or above Rejection on the same trees within the interval: {claim.good} of "
        f"{claim.cells} cells"
    )
    most = f"the bound: {exceeded} of {roots} roots exceeded by a formula, {chance} of {samples} samples beyond chance"
    return [
        *([ahead] if claim.cells else []),  # "0 of 0" reads like a result
        *(f"  below: {each}" for each in claim.below),
        *([most] if roots else []),
        *(f"  ABOVE THE BOUND, which cannot be: {each}" for each in wrong),
        ROOTS,
        "tokens per pass: accepted and one more, not cut at an end token, rounds with a draft only; of path: accepted of "
        "the levels drafted",
        "first level: share of rounds that accepted a child of the root; formula and bound are means over fewer positions, "
        "so a share of all rounds may lie above them; the check compares equal positions",
        "intervals: 95 % over prompts, ratios paired; ms: median of a round, each rule with a fresh view of the pass",
    ]


def markdown(cells: Sequence["Cell"], lines: Sequence[str], source: dict[str, Any]) -> str:
    """Trees by rules, for every drafter and temperature: tokens per pass, the first level, milliseconds."""
    parts: list[str] = []
    for drafter, temperature in dict.fromkeys((cell.drafter, cell.temperature) for cell in cells):
        some = [cell for cell in cells if (cell.drafter, cell.temperature) == (drafter, temperature)]
        parts.append(f"### {drafter}, temperature {temperature:g}\n")
        parts.append(_matrix("tokens per pass (over the first rule's)", some, _tokens))
        if any(cell.bound for cell in some):
            parts.append(
                _matrix("first level accepted (by formula, at the positions of the bound)", some, _first, bound=True)
            )
        parts.append(_matrix("milliseconds (% of the pass)", some, _time))
    said = "\n".join(f"- {line.strip()}" for line in lines)
    return "\n".join([*parts, said, "", f"`{json.dumps(source)}`", ""])


def _matrix(title: str, cells: Sequence["Cell"], text: Callable[["Line"], str], *, bound: bool = False) -> str:
    names = list(dict.fromkeys(line.rule for cell in cells for line in cell.lines))
    heads = [title, *names, *(["best of any rule"] if bound else [])]
    rows: list[list[str]] = []
    for cell in cells:
        each = {line.rule: text(line) for line in cell.lines}
        rows.append([cell.tree, *(each.get(name, NONE) for name in names)])
        if bound and cell.bound is not None:
            rows[-1].append(("at most " if cell.loose else "") + interval(cell.bound))
        elif bound:
            rows[-1].append(NONE)
    lines = ["| " + " | ".join(row) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:], ""])


def _tokens(line: "Line") -> str:
    return f"{line.tokens.value:.2f}" + ("" if line.over is None else f" ({interval(line.over)})")


def _first(line: "Line") -> str:
    return f"{line.first.value:.2f}" + ("" if line.expected is None else f" ({line.expected:.2f})")


def _time(line: "Line") -> str:
    return f"{line.ms:.1f}" + ("" if line.share is None else f" ({100 * line.share.value:.0f})")
