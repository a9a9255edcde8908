"""Answers come in input order, each as soon as it is ready, and one failure stops nobody else."""

import json
import threading

import pytest

from draftwood.cli.answering import answers
from draftwood.cli.answering.answers import Task, as_json
from draftwood.cli.answering.questions import Question
from draftwood.core.sampling.params import SamplingParams

TOO_LONG = "word " * 9000
STATS = {
    "target_passes",
    "tokens_per_pass",
    "tokens_per_second",
    "acceptance_by_position",
    "rounds_all",
    "rounds_some",
    "rounds_none",
    "disabled",
    "cached_tokens",
}


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

    def answer(self, talk, question, turn):
        if talk.turns:
            assert written.wait(10)  # would never come if lines were kept back
        events.append(question.turns[turn])
        return asked(self, talk, question, turn)

    monkeypatch.setattr(answers, "emit", emit)
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


def test_answer_has_every_documented_field(llm):
    question = Question(("one two one two one",), {"question_id": 5, "category": "counting"})
    result = llm.generate(question.turns[0], SamplingParams(max_tokens=4, seed=3))
    record = answers.answered(question, 0, result)
    fields = (
        "prompt recipe backend text token_ids finish_reason finish_detail lossless seed turn stats num_prompt_tokens"
    )
    assert set(fields.split()) <= set(record) and record["prompt"] == question.turns[0]
    assert record["stats"].keys() >= STATS
    assert (record["question_id"], record["category"], record["turn"], record["seed"]) == (5, "counting", 0, 3)
    assert llm.tokenizer.decode(record["token_ids"]) == record["text"]


def test_line_is_ascii_and_one(capsys):
    answers.emit({"text": "ü\u2028\n\ud800"})
    out = capsys.readouterr().out
    assert out.isascii() and out.count("\n") == 1 and json.loads(out)["text"] == "ü\u2028\n\ud800"


def test_failure_tells_what_is_known():
    question = Question(labels={"question_id": 9}, error="line 3: it is not JSON")
    record = answers.failed(question, 0, "auto", "line 3: it is not JSON")
    assert record == {"question_id": 9, "turn": 0, "recipe": "auto", "error": "line 3: it is not JSON"}
