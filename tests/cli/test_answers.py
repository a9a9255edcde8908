"""Answers come in input order, each as soon as it is ready, and one failure stops nobody else."""

import json
import threading

import pytest

from draftwood.cli import answers, records
from draftwood.cli.answers import Task, as_json
from draftwood.cli.questions import Question
from draftwood.core.sampling.params import SamplingParams

TOO_LONG = "word " * 9000


def task(llm, **changes) -> Task:
    return Task(llm, SamplingParams(max_tokens=3), threading.Event(), **changes)


def lines_of(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("together", [1, 3])
def test_order_is_that_of_the_questions(llm, capsys, together):
    questions = [
        Question(("Name a fruit.", "Another."), {"question_id": 0}),
        Question(labels={"question_id": 1}, error="line 2: it is not JSON"),
        Question((TOO_LONG, "never asked"), {"question_id": 2}),
        Question(("Say hello.",), {"question_id": 3}),
    ]
    assert as_json(task(llm), questions, together) is False
    lines = lines_of(capsys)
    assert [(x["question_id"], x["turn"], "error" in x) for x in lines] == [
        (0, 0, False),
        (0, 1, False),
        (1, 0, True),
        (2, 0, True),
        (3, 0, False),
    ]
    assert "this engine's context" in lines[3]["error"]


def test_turn_is_written_before_the_next_is_asked(llm, monkeypatch):
    events: list[str] = []
    asked = answers.Task.answer
    written = threading.Event()

    def emit(record) -> None:
        events.append(f"line {record['turn']}")
        written.set()

    def answer(self, talk, text, show=None):
        if talk.turns:
            assert written.wait(10)  # would never come if lines were kept back
        events.append(text)
        return asked(self, talk, text, show)

    monkeypatch.setattr(records, "emit", emit)
    monkeypatch.setattr(answers.Task, "answer", answer)
    assert as_json(task(llm), [Question(("a", "b"))])
    assert events == ["a", "line 0", "b", "line 1"]


def test_interrupted_run_keeps_the_turn_it_was_in_and_begins_no_other(llm, capsys, monkeypatch):
    job = task(llm)
    started = llm.stream

    def stream(*args, **options):
        for chunk in started(*args, **options):
            job.until.set()
            yield chunk

    monkeypatch.setattr(llm, "stream", stream)
    as_json(job, [Question(("a", "b")), Question(("c",))])
    lines = lines_of(capsys)
    assert [(x["turn"], x["finish_reason"]) for x in lines] == [(0, "cancelled")]


def test_unexpected_error_of_a_worker_surfaces(llm, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(llm, "stream", broken)
    with pytest.raises(RuntimeError):
        as_json(task(llm), [Question(("a",)), Question(("b",))], 2)
