import json

import pytest

from draftwood.bench.spec.answer import Answer, shared_text


def test_an_answer_comes_back_from_its_line(answer):
    made = answer("m", "1", 10, 2.0, tokens=[1, 2], parts={"score": 0.5})
    line = json.loads(json.dumps(made.record()))
    assert Answer.of(line) == made
    assert Answer.of({**line, "of_a_later_version": 1}) == made


def test_speeds_are_those_of_the_clock(answer):
    made = answer("m", "1", 9, 2.0)
    assert made.speed == 4.5
    assert made.per_token == pytest.approx(1.6 / 8)
    assert answer("m", "1", 1, 2.0).per_token is None


def test_end_tokens_do_not_make_a_text_another_one():
    assert shared_text([5, 6, 2], [5, 6], ends=[2])
    assert not shared_text([5, 6], [5], ends=[2])
    assert not shared_text([2, 5], [5], ends=[2])
