"""A JSON line is whole, ASCII and finite."""

import json

from draftwood.cli import records
from draftwood.cli.questions import Question
from draftwood.core.sampling.params import SamplingParams

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


def test_answer_has_every_documented_field(llm):
    question = Question(("one two one two one",), {"question_id": 5, "category": "counting"})
    result = llm.generate(question.turns[0], SamplingParams(max_tokens=4, seed=3))
    record = records.answered(question, 0, result)
    fields = (
        "prompt recipe backend text token_ids finish_reason finish_detail lossless seed turn stats num_prompt_tokens"
    )
    assert set(fields.split()) <= set(record) and record["prompt"] == question.turns[0]
    assert record["stats"].keys() >= STATS
    assert (record["question_id"], record["category"], record["turn"], record["seed"]) == (5, "counting", 0, 3)
    assert llm.tokenizer.decode(record["token_ids"]) == record["text"]


def test_line_is_ascii_and_one(capsys):
    records.emit({"text": "ü\u2028\n\ud800"})
    out = capsys.readouterr().out
    assert out.isascii() and out.count("\n") == 1 and json.loads(out)["text"] == "ü\u2028\n\ud800"


def test_failure_tells_what_is_known():
    question = Question(labels={"question_id": 9}, error="line 3: it is not JSON")
    record = records.failed(question, 0, "auto", "line 3: it is not JSON")
    assert record == {"question_id": 9, "turn": 0, "recipe": "auto", "error": "line 3: it is not JSON"}
