"""draftwood bench rules: what rules accept of real drafts, tree by tree, compared with each other and with the bound."""

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from draftwood.bench.cells import NONE, interval, number
from draftwood.cli.bench.common import shared
from draftwood.cli.bench.common.progress import say
from draftwood.cli.bench.common.table_cells import compact
from draftwood.cli.bench.spec import read_items
from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.options import Device, Dtype, TopP, said_top_p, sampling
from draftwood.cli.options import temperatures as temperatures_of
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError
from draftwood.option_parsing import words_of

if TYPE_CHECKING:
    from draftwood.bench.study.rules.compare import Cell, Claim, Line

ROOTS = "positions are those of the first rule's run; the other rules judged the same trees with coins of their own"
Some = Annotated[str, typer.Option(help="Some of them, separated by commas; all if left out.")]


def rules(
    questions: shared.Questions,
    drafters: Annotated[
        str, typer.Option(help="Recipes that lend their drafters, separated by commas.")
    ] = "fast_draft,eagle3",
    temperature: shared.Temperatures = "0,0.7,1",
    top_p: TopP = 1.0,
    trees: Some = "",
    rules: Some = "",
    lp: Annotated[
        bool, typer.Option("--lp", help="Also Selection by a linear programme, which is far slower.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Draws of a tree, or a few less; chains have 4 and 8.")] = 16,
    count: Annotated[int, typer.Option(min=1, help="Number of questions, the tasks of the file in turn.")] = 12,
    max_tokens: shared.MaxTokens = 64,
    trials: Annotated[int, typer.Option(min=1, help="Sets of coins for each rule and tree; more give less noise.")] = 1,
    every: Annotated[int, typer.Option(min=1, help="One of so many rounds is compared with the bound.")] = 8,
    seed: int = 0,
    threads: shared.Threads = None,
    model: shared.Model = "smollm2",
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: shared.Out = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables as Markdown to this file.")
    ] = None,
) -> None:
    """Exact rules by trees: tokens per pass, acceptance and its bound, and time, on the same drafts of real answers.

    The token-level rule writes the answers; the others judge the same trees. Ends with status 1 if a rule exceeds the
    bound, which would be an error of this program.
    """
    for file in (out, markdown_file):
        shared.writable(file)
        if file is not None and file.resolve() == questions.resolve():
            raise OptionError(f"{file} would overwrite the questions\nhint: another name")
    names = shared.recipe_names(drafters, "--drafters fast_draft,eagle3")
    temperatures = temperatures_of(temperature)
    sampling(top_p=top_p, seed=seed)  # refused before the work

    from draftwood import recipes
    from draftwood.bench.spec.questions import chat_prompts, in_turn
    from draftwood.bench.study.rules.compare import chosen_rules, claim, faults, left_out, measure
    from draftwood.bench.study.rules.rule_trees import chosen_trees
    from draftwood.runners.open import runner_of

    shapes, able = chosen_trees(words_of(trees), nodes), chosen_rules(words_of(rules), lp=lp)
    absent = left_out(words_of(rules), shapes, lp=lp) if max(temperatures) > 0 else []
    if rules and min(temperatures) == 0:
        absent.append("at temperature 0 all rules accept the same: only Match is run")
    items = in_turn(read_items(questions), count)
    loaded, source, meter = shared.begin(model, dtype, device, threads)
    asked = chat_prompts(loaded.tokenizer, (item.text for item in items))
    target = runner_of(loaded)
    lent = [(name, recipes.drafter(name, target)) for name in names]
    settings = {
        "model": model,
        "drafters": names,
        "temperatures": temperatures,
        "top_p": top_p,
        "nodes": nodes,
        "left_out": absent,
        "questions": [item.id for item in items],
        "max_tokens": max_tokens,
        "trials": trials,
        "every": every,
        "seed": seed,
    }
    plan = [
        (drafter, temperature, tree)
        for drafter in lent
        for temperature in temperatures
        for tree in shapes.items()
        if tree[1].at(temperature) is not None
    ]
    if not plan:
        raise OptionError(
            f"nothing to compare at {temperature}\nhint: at 0 take trees of given tokens, such as best-first"
        )
    settings["planned"] = len(plan)
    screen, found = Screen(), list["Cell"]()
    tasks = len({item.task for item in items})
    coins = f"{trials} set{'s' * (trials > 1)} of coins"
    screen.line(
        f"{len(items)} questions of {tasks} tasks, {max_tokens} tokens, trees of {nodes} draws, {coins}, "
        f"{loaded.info.backend}, {source['threads']} threads{said_top_p(top_p)}"
    )
    screen.lines(absent)
    begun = perf_counter()
    whole: dict[str, Any] = {"settings": settings, "provenance": source}
    options: dict[str, Any] = {key: settings[key] for key in ("top_p", "max_tokens", "trials", "every", "seed")}
    with until_interrupted(signal.SIGTERM) as stopped:

        def check(_: str) -> None:
            if stopped.is_set():  # between two answers, so that no round is interrupted
                raise KeyboardInterrupt

        try:
            for i, (drafter, each, tree) in enumerate(plan):
                minutes = (perf_counter() - begun) / 60
                say(f"{i + 1}/{len(plan)}, {minutes:.1f} min: {drafter[0]}, {each:g}, {tree[0]}")
                cell = measure(loaded, drafter, tree, each, asked, able, say=check, **options)
                assert cell is not None
                found.append(cell)
                screen.line()
                screen.line(said_of_cell(cell))
                screen.show(of_cell(cell))
                shared.save(out, {**whole, "finished": False, "cells": [asdict(one) for one in found]})
        except KeyboardInterrupt:
            pass
    finished = len(found) == len(plan)
    source["machine_meanwhile"], source["minutes"] = meter.read(), round((perf_counter() - begun) / 60, 1)
    wrong, above = faults(found), claim(found)
    lines = foot(found, above, wrong)
    if not finished:
        stopped_at = f"stopped: {len(found)} of {len(plan)} cells are measured"
        lines.insert(0, f"NOT FINISHED, {stopped_at}")
        say(stopped_at + (f'; {out} has "finished": false' if out else ""))
    if top_p < 1:
        lines.append(f"distributions of target and draft: the most probable tokens that sum to {top_p:g}")
    screen.line()
    screen.lines((*lines, *shared.source_lines(source)))
    summed = {"claim": asdict(above), "faults": wrong}
    shared.save(out, {**whole, "finished": finished, "cells": [asdict(one) for one in found], **summed})
    if markdown_file is not None:
        markdown_file.write_text(markdown(found, [*absent, *lines], source))
    if wrong:
        raise typer.Exit(1)
    if not finished:
        raise typer.Exit(STATUS)


# Tables: one a cell for the screen, and trees by rules in Markdown.


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
        accepted = map(interval, (line.tokens, line.over, line.path, line.first))
        drawn.add_row(line.rule, *accepted, number(line.expected, 2), f"{line.ms:.2f}", interval(line.share, 0, 100))
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
        title = "tokens per pass (over the first rule's)"
        parts.append(_matrix(title, some, lambda x: (f"{x.tokens.value:.2f}", interval(x.over))))
        if any(cell.bound for cell in some):
            title = "first level accepted (by formula, at the positions of the bound)"
            parts.append(_matrix(title, some, lambda x: (f"{x.first.value:.2f}", number(x.expected, 2)), bound=True))
        title = "milliseconds (% of the pass)"
        parts.append(_matrix(title, some, lambda x: (f"{x.ms:.1f}", number(x.share and x.share.value, 0, 100))))
    said = "\n".join(f"- {line.strip()}" for line in lines)
    return "\n".join([*parts, said, "", f"`{json.dumps(source)}`", ""])


def _matrix(
    title: str, cells: Sequence["Cell"], values: Callable[["Line"], tuple[str, str]], *, bound: bool = False
) -> str:
    """`values`: of a line, the second one in parentheses if it is known."""
    names = list(dict.fromkeys(line.rule for cell in cells for line in cell.lines))
    heads = [title, *names, *(["best of any rule"] if bound else [])]
    rows: list[list[str]] = []
    for cell in cells:
        found = {line.rule: values(line) for line in cell.lines}
        each = {rule: first if second == NONE else f"{first} ({second})" for rule, (first, second) in found.items()}
        most = "at most " if cell.loose and cell.bound is not None else ""
        rows.append([cell.tree, *(each.get(name, NONE) for name in names), *([most + interval(cell.bound)] * bound)])
    lines = ["| " + " | ".join(row) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:], ""])
