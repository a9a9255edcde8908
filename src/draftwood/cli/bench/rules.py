"""draftwood bench rules: what rules accept of real drafts, tree by tree, compared with each other and with the bound."""

import signal
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood.cli.bench.progress import say
from draftwood.cli.bench.rules_tables import foot, markdown, of_cell, said_of_cell
from draftwood.cli.bench.shared import (
    MaxTokens,
    Model,
    Out,
    Questions,
    Temperatures,
    Threads,
    begin,
    recipe_names,
    save,
    source_lines,
    writable,
)
from draftwood.cli.bench.spec import read_items
from draftwood.cli.interrupt import STATUS, until_interrupted
from draftwood.cli.options import Dtype, TopP, said_top_p, sampling
from draftwood.cli.options import temperatures as temperatures_of
from draftwood.cli.screen import Screen
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.bench.study.rules import Cell

Some = Annotated[str, typer.Option(help="Some of them, separated by commas; all if left out.")]


def rules(
    questions: Questions,
    drafters: Annotated[
        str, typer.Option(help="Recipes that lend their drafters, separated by commas.")
    ] = "fast_draft,eagle3",
    temperature: Temperatures = "0,0.7,1",
    top_p: TopP = 1.0,
    trees: Some = "",
    rules: Some = "",
    lp: Annotated[
        bool, typer.Option("--lp", help="Also Selection by a linear programme, which is far slower.")
    ] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Draws of a tree, or a few less; chains have 4 and 8.")] = 16,
    count: Annotated[int, typer.Option(min=1, help="Number of questions, the tasks of the file in turn.")] = 12,
    max_tokens: MaxTokens = 64,
    trials: Annotated[int, typer.Option(min=1, help="Sets of coins for each rule and tree; more give less noise.")] = 1,
    every: Annotated[int, typer.Option(min=1, help="One of so many rounds is compared with the bound.")] = 8,
    seed: int = 0,
    threads: Threads = None,
    model: Model = "smollm2",
    dtype: Dtype = "auto",
    out: Out = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables as Markdown to this file.")
    ] = None,
) -> None:
    """Exact rules by trees: tokens per pass, acceptance and its bound, and time, on the same drafts of real answers.

    The token-level rule writes the answers; the others judge the same trees. Ends with status 1 if a rule exceeds the
    bound, which would be an error of this program.
    """
    for file in (out, markdown_file):
        writable(file)
        if file is not None and file.resolve() == questions.resolve():
            raise OptionError(f"{file} would overwrite the questions\nhint: another name")
    names = recipe_names(drafters, "--drafters fast_draft,eagle3")
    temperatures = temperatures_of(temperature)
    sampling(top_p=top_p, seed=seed)  # refused before the work

    from draftwood import recipes
    from draftwood.bench.spec.questions import in_turn
    from draftwood.bench.study.rule_trees import chosen_trees
    from draftwood.bench.study.rules import chosen_rules, claim, faults, left_out, measure

    shapes, able = chosen_trees(_words(trees), nodes), chosen_rules(_words(rules), lp=lp)
    absent = left_out(_words(rules), shapes, lp=lp) if max(temperatures) > 0 else []
    if rules and min(temperatures) == 0:
        absent.append("at temperature 0 all rules accept the same: only Match is run")
    items = in_turn(read_items(questions), count)
    loaded, source, meter = begin(model, dtype, threads)
    asked = [loaded.tokenizer.encode_chat([{"role": "user", "content": item.text}]) for item in items]
    lent = [(name, recipes.drafter(name, loaded.model)) for name in names]
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
        f"{loaded.backend}, {source['threads']} threads{said_top_p(top_p)}"
    )
    for line in absent:
        screen.line(line)
    begun = perf_counter()
    whole: dict[str, Any] = {"settings": settings, "provenance": source}
    options: dict[str, Any] = {"top_p": top_p, "max_tokens": max_tokens, "trials": trials, "every": every, "seed": seed}
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
                save(out, {**whole, "finished": False, "cells": [asdict(one) for one in found]})
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
    for line in (*lines, *source_lines(source)):
        screen.line(line)
    summed = {"claim": asdict(above), "faults": wrong}
    save(out, {**whole, "finished": finished, "cells": [asdict(one) for one in found], **summed})
    if markdown_file is not None:
        markdown_file.write_text(markdown(found, [*absent, *lines], source))
    if wrong:
        raise typer.Exit(1)
    if not finished:
        raise typer.Exit(STATUS)


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
