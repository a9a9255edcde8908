import pytest

from draftwood.bench.report.losses import losses
from draftwood.bench.spec.run import PLAIN
from measured_log import MIXED, made_answer


def answers(*seconds: tuple[float, float]):
    """(plain, own) of each question."""
    pairs = [(PLAIN, i, a) for i, (a, _) in enumerate(seconds)] + [(MIXED, i, b) for i, (_, b) in enumerate(seconds)]
    return [made_answer(name, i, "", spent) for name, i, spent in pairs]


def test_only_questions_with_a_lower_speed_are_losses_and_the_worst_comes_first():
    found = losses(answers((1.0, 1.1), (1.0, 0.5), (1.0, 2.0), (1.0, 1.0)), MIXED, PLAIN)
    assert [loss.own.question for loss in found] == ["2", "0"]
    assert found[0].ratio == pytest.approx(0.5)


def test_a_longer_text_in_more_time_is_no_loss():
    made = answers((1.0, 1.5))
    made[1].emitted = 20
    assert losses(made, MIXED, PLAIN) == []


def test_failed_answers_are_no_losses():
    made = answers((1.0, 2.0), (1.0, 2.0), (1.0, 2.0))
    made[0].error = made[4].error = "out of memory"
    assert [loss.own.question for loss in losses(made, MIXED, PLAIN)] == ["2"]


def test_the_time_lost_is_named_by_part_for_as_many_tokens():
    made = answers((1.0, 3.0))
    made[0].parts = {"score": 0.7}
    made[1].emitted = 20
    (loss,) = losses(made, MIXED, PLAIN)
    # 20 tokens of plain decoding: first token 0.4, score 1.4, other 0.2
    assert loss.more == pytest.approx({"propose": 0.6, "first token": 0.2, "score": 0.1, "other": 0.1})
    assert list(loss.more)[:2] == ["propose", "first token"]
