import pytest

from draftwood.bench.spec.answer import DIFFERS, IDENTICAL, NEAR
from draftwood.bench.spec.summary import ALL, best, figures, prompt_speed, ratio


@pytest.fixture
def two(answer):
    """Plain and fast on three questions of two sub-tasks; fast fails on the last."""
    return [
        answer("plain", "1", 10, 1.0, passes=10, drafted=0, accepted=0),
        answer("fast", "1", 10, 0.5, passes=5, drafted=10, accepted=5, status=IDENTICAL, same_text=True),
        answer("plain", "2", 20, 1.0, passes=20, task="rag"),
        answer("fast", "2", 20, 0.25, passes=5, drafted=10, accepted=15, status=NEAR, same_text=False, task="rag"),
        answer("plain", "3", 30, 1.0, passes=30, task="rag"),
        answer("fast", "3", 0, 0.0, error="out of memory", task="rag"),
    ]


def test_a_speed_is_the_mean_of_the_questions_speeds(two):
    found = figures(two, ["plain", "fast"], "plain")[ALL]
    assert found["plain"]["tokens_per_second"] == pytest.approx(20)  # 10, 20, 30
    assert found["fast"]["tokens_per_second"] == pytest.approx(50)  # 20, 80; the third has no speed
    assert found["plain"]["decode_tokens_per_second"] == pytest.approx((9 / 0.8 + 19 / 0.8 + 29 / 0.8) / 3)
    assert found["plain"]["first_token_seconds_median"] == pytest.approx(0.2)


def test_the_speed_of_reading_prompts_ends_with_the_first_token(two):
    found = figures(two, ["plain"], "plain")[ALL]["plain"]
    assert found["prompt_tokens_per_second"] == pytest.approx(two[0].prompt_tokens / 0.2)
    two[1].first_seconds = two[0].first_seconds / 4
    read, all_told = ratio(two[:2], "fast", "plain", speed=prompt_speed), ratio(two[:2], "fast", "plain")
    assert read is not None and read["value"] == pytest.approx(4)
    assert all_told is not None and all_told["value"] == pytest.approx(2)


def test_a_speed_has_an_interval_of_the_questions_speeds(two):
    found = figures(two, ["plain", "fast"], "plain")
    whole = found[ALL]["plain"]["tokens_per_second_interval"]
    assert whole["value"] == pytest.approx(20) and 10 <= whole["low"] < 20 < whole["high"] <= 30
    assert found["qa"]["fast"]["tokens_per_second_interval"]["low"] is None  # one question
    assert figures(two[-1:], ["fast"], "plain")[ALL]["fast"]["tokens_per_second_interval"] is None


def test_a_failure_is_counted_and_leaves_its_question_out_of_both_sides(two):
    fast = figures(two, ["plain", "fast"], "plain")[ALL]["fast"]
    assert (fast["questions"], fast["failures"]) == (3, 1)
    assert fast["speed_up"]["value"] == pytest.approx(50 / 15)  # not 50 / 20
    assert (fast["speed_up"]["pairs"], fast["speed_up"]["left_out"]) == (2, 1)


def test_tokens_per_pass_is_over_all_passes(two):
    assert figures(two, ["fast"], "plain")[ALL]["fast"]["tokens_per_pass"] == pytest.approx(30 / 10)


def test_sub_tasks_have_figures_of_their_own(two):
    found = figures(two, ["plain", "fast"], "plain")
    assert list(found) == [ALL, "qa", "rag"]
    assert found["rag"]["plain"]["tokens_per_second"] == pytest.approx(25)
    assert found["qa"]["fast"]["speed_up"]["value"] == pytest.approx(2)


def test_near_ties_are_exact_and_differences_are_not(two, answer):
    found = figures([*two, answer("fast", "4", 10, 1.0, status=DIFFERS, same_text=False)], ["fast"], "plain")[ALL][
        "fast"
    ]
    assert (found["identical"], found["near_ties"], found["different"]) == (1, 1, 1)
    assert found["exact_share"] == pytest.approx(2 / 3) and found["same_text_share"] == pytest.approx(1 / 3)


def test_acceptance_by_position_adds_up_ragged_answers(answer):
    answers = [
        answer("m", "1", 5, 1.0, drafted_by_position=[4, 2], accepted_by_position=[3]),
        answer("m", "2", 5, 1.0, drafted_by_position=[4, 2, 1], accepted_by_position=[1, 1]),
    ]
    assert figures(answers, ["m"], "m")[ALL]["m"]["acceptance_by_position"] == [0.5, 0.25, 0.0]


def test_time_outside_all_parts_is_other(answer):
    parts = {"propose": 0.1, "score": 0.5, "draft": 0.08}
    shares = figures([answer("m", "1", 5, 1.0, parts=parts)], ["m"], "m")[ALL]["m"]["shares"]
    assert shares["score"] == pytest.approx(0.5 / 0.8) and shares["other"] == pytest.approx(0.2 / 0.8)


def test_a_method_that_never_answered_has_no_figures_but_a_count(answer):
    answers = [answer("plain", "1", 5, 1.0), answer("gone", "1", 0, 0.0, error="died")]
    gone = figures(answers, ["plain", "gone"], "plain")[ALL]["gone"]
    assert gone["failures"] == 1 and gone["tokens_per_second"] is None and gone["speed_up"] is None


def test_the_best_peer_is_the_fastest_that_answered(two):
    found = figures(two, ["plain", "fast"], "plain")
    assert best(found, ["plain", "fast"]) == "fast" and best(found, []) is None
    back = ratio(two, "plain", "fast")
    assert back is not None and back["value"] == pytest.approx(15 / 50)
