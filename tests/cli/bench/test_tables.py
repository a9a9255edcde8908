import io
from typing import Any

import pytest
from rich.console import Console

from draftwood.bench.spec.answer import Answer
from draftwood.bench.spec.summary import ALL, figures, ratio
from draftwood.cli.bench import tables

METHODS = ["autoregressive", "speculative_sampling", "llamacpp-ngram-map-k4v"]


@pytest.fixture
def found() -> dict[str, Any]:
    answers = []
    for question in range(4):
        for i, name in enumerate(METHODS):
            made = Answer(name, str(question), "", ("dialogue", "math_reasoning")[question % 2], 5)
            made.emitted, made.passes, made.seconds = 100, 50, 1.0 + i + question
            made.first_seconds, made.decode_seconds, made.parts = 0.2, 0.8 + i, {"propose": 0.1, "score": 0.6}
            answers.append(made)
    answers[-1].error = "died"
    against = {name: {METHODS[2]: ratio(answers, name, METHODS[2])} for name in METHODS[:2]}
    found = figures(answers, METHODS, METHODS[0])
    return {"figures": found, "against_peers": against, "rivals": [METHODS[2]], "lossy": []}


def lines(drawn: Any, width: int = 80) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(drawn)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("make", [tables.speeds, tables.drafting, tables.by_task])
def test_tables_fit_eighty_columns_with_every_name_whole(make, found):
    text = lines(make(found, METHODS))
    assert all(len(line) <= 80 for line in text)
    assert all(any(line.startswith(name) for line in text) for name in METHODS)
    assert not any(line.startswith(" ") for line in text[2:])  # no row is broken in two


def test_failures_and_intervals_are_shown(found):
    (row,) = [line for line in lines(tables.speeds(found, METHODS)) if line.startswith(METHODS[2])]
    assert row.split()[-1] == "1" and "-" in row.split()[-2]


def test_a_lossy_recipe_is_called_so_where_others_say_how_many_texts_are_the_same(found):
    (row,) = [line for line in lines(tables.drafting({**found, "lossy": METHODS[1:2]}, METHODS)) if "LOSSY" in line]
    assert row.startswith(METHODS[1])
    assert not any("LOSSY" in line for line in lines(tables.drafting(found, METHODS)))


def test_without_peers_there_is_nothing_to_be_against(found):
    assert tables.against({**found, "rivals": []}) is None
    assert "1." in "".join(lines(tables.against(found)))


def test_sub_tasks_have_their_count_below(found):
    assert lines(tables.by_task(found, METHODS))[-1].split() == ["questions", "2", "2", "4"]


def test_what_is_unknown_is_a_dash():
    assert [tables.number(None, 1), tables.percent(None), tables.ratio(None)] == ["-"] * 3
    assert tables.ratio({"value": 1.5, "low": None, "high": None}) == "1.50"
    assert ALL == tables.ALL
