import io
from typing import Any

import pytest
from rich.console import Console

from draftwood.bench.spec.answer import Answer
from draftwood.bench.spec.summary import ALL, figures, prompt_speed, ratio
from draftwood.cli.bench import spec_tables as tables

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
    precision = dict(zip(METHODS, ("int8", "int8", "Q4_1"), strict=True))
    device = dict(zip(METHODS, ("NVIDIA H200", "NVIDIA H200", "cpu"), strict=True))
    peers = {"against_peers": against, "rivals": [METHODS[2]], "precision": precision, "device": device}
    prompts = {METHODS[2]: ratio(answers, METHODS[0], METHODS[2], speed=prompt_speed)}
    return {"figures": found, "lossy": [], "prompts_against_peers": prompts, **peers}


def lines(drawn: Any, width: int = 80) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(drawn)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("make", [tables.speeds, tables.drafting, tables.by_task])
def test_tables_fit_eighty_columns_with_every_name_whole(make, found):
    text = lines(make(found, METHODS))
    assert all(len(line) <= 80 for line in text)
    assert all(any(line.startswith(name) for line in text) for name in METHODS)
    head = next(i for i, line in enumerate(text) if line.startswith("─"))
    assert len(text) - head - 1 >= len(METHODS)
    assert not any(line.startswith(" ") for line in text[head:])  # no row is broken in two


def test_intervals_are_shown(found):
    (row,) = [line for line in lines(tables.speeds(found, METHODS)) if line.startswith(METHODS[2])]
    low, high = map(float, row.split()[-1].split("-"))
    assert low <= float(row.split()[-2]) <= high


def test_a_lossy_recipe_is_called_so_where_others_say_how_many_texts_are_the_same(found):
    (row,) = [line for line in lines(tables.drafting({**found, "lossy": METHODS[1:2]}, METHODS)) if "LOSSY" in line]
    assert row.startswith(METHODS[1])
    assert not any("LOSSY" in line for line in lines(tables.drafting(found, METHODS)))


def test_without_peers_there_is_nothing_to_be_against(found):
    assert tables.against({**found, "rivals": []}) is None
    assert "1." in "".join(lines(tables.against(found)))


def test_speeds_of_reading_prompts_stand_beside_those_of_the_peers(found):
    said = tables.prompt_line(found, METHODS[0])
    assert said is not None and f"{METHODS[0]} 25, {METHODS[2]} 25 (ours over it 1.00" in said  # 5 tokens in 0.2 s
    assert tables.prompt_line({**found, "prompts_against_peers": {}}, METHODS[0]) is None


def test_a_ratio_to_a_peer_names_what_the_peer_computes_in(found):
    name = f"{METHODS[2]} (Q4_1)"
    assert name in lines(tables.against(found), 160)[0]
    for make in (tables.speeds, tables.by_task):
        assert any(line.startswith(name) for line in lines(make(found, METHODS)))
    said = tables.precision_line(found, METHODS[2:])
    assert said is not None and f"our recipes compute in int8, {METHODS[2]} in Q4_1" in said
    assert tables.precision_line({**found, "precision": dict.fromkeys(METHODS, "float32")}, METHODS[2:]) is None


def test_a_peer_that_runs_elsewhere_is_named_with_its_device(found):
    assert tables.device_line(found, METHODS[2:]) == f"our recipes run on NVIDIA H200, {METHODS[2]} on cpu"
    for device in ("NVIDIA H200", "unknown"):  # the same one, and that of a peer that failed to load
        same = {**found, "device": {**found["device"], METHODS[2]: device}}
        assert tables.device_line(same, METHODS[2:]) is None


def test_columns_are_spelt_out(found):
    columns = [column for make in (tables.speeds, tables.drafting) for column in make(found, METHODS).columns]
    heads = " ".join(" ".join(str(column.header).split()) for column in columns)
    assert "tokens per s after first" in heads and "% of time: propose/ score/rest" in heads
    for short in ("tok", "TTFT", "acc.", "pos.", "prop.", "t/pass", "p99"):
        assert short not in heads.split()


def test_sub_tasks_have_their_count_below(found):
    assert lines(tables.by_task(found, METHODS))[-1].split() == ["questions", "2", "2", "4"]


def test_both_sides_call_all_questions_alike():
    assert ALL == tables.ALL
