import pytest

from draftwood.bench.report.time_parts import draft_per_token, per_token, seconds_by_part
from measured_log import MIXED, made_answer


def test_the_parts_of_an_answer_add_up_to_its_time():
    answer = made_answer(MIXED, 0, "", 2.0)
    parts = seconds_by_part(answer)
    assert parts == pytest.approx({"first token": 0.4, "propose": 0.4, "score": 1.0, "other": 0.2})
    assert list(parts) == ["first token", "propose", "score", "other"]


def test_an_engine_that_reports_no_parts_has_its_decoding_undivided():
    answer = made_answer(MIXED, 0, "", 2.0)
    answer.parts = {}
    assert seconds_by_part(answer) == pytest.approx({"first token": 0.4, "decoding": 1.6})
    assert draft_per_token([answer]) is None


def test_times_per_token_are_over_all_tokens_of_good_answers():
    answers = [made_answer(MIXED, i, "", seconds) for i, seconds in enumerate((1.0, 3.0, 9.0))]
    answers[2].error = "out of memory"
    found = per_token(answers)
    assert sum(found.values()) == pytest.approx(4.0 / 20) and found["score"] == pytest.approx(2.0 / 20)
    assert draft_per_token(answers) == pytest.approx(0.4 / 20)
    assert per_token(answers[2:]) == {}
