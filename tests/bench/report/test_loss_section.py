from draftwood.bench.report.loss_section import MOST, losing_cases
from draftwood.bench.report.losses import losses
from draftwood.bench.spec.run import PLAIN
from measured_log import MIXED, made_answer


def test_a_method_that_loses_often_shows_its_worst_questions_and_counts_all():
    count = MOST + 5
    own = [made_answer(MIXED, i, "x" * 300, 1.1 + i / 10) for i in range(count)]
    found = losses([*own, *(made_answer(PLAIN, i, "", 1.0) for i in range(count))], MIXED, PLAIN)
    drawn = losing_cases({MIXED: found}, {MIXED: count})
    assert f"slower on {count} of {count} questions" in drawn and drawn.count("<bdi>") == MOST
    assert "x" * 160 + "…" in drawn and "x" * 161 not in drawn


def test_texts_of_different_length_say_so():
    own, plain = made_answer(MIXED, 0, "", 3.0), made_answer(PLAIN, 0, "", 1.0)
    own.emitted = 20
    drawn = losing_cases({MIXED: losses([own, plain], MIXED, PLAIN)}, {MIXED: 1})
    assert "5 + 20 (plain: 10) tokens" in drawn
