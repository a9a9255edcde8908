"""Text is clipped in one place: at ends, stops and lengths, wherever they fall inside an accepted path."""

from collections.abc import Sequence
from typing import Any

import pytest

from draftwood.core.request import Request, Stats
from draftwood.core.sampling.params import SamplingParams


class Letters:
    """Token i is one letter; token 30 is the first half of an é, token 31 the second."""

    def __init__(self) -> None:
        self.half = False

    def push(self, ids: Sequence[int]) -> str:
        out = ""
        for i in ids:
            out += "é" if i == 31 and self.half else "" if i == 30 else "" if i == 29 else chr(ord("a") + i)
            self.half = i == 30
        return out

    def flush(self) -> str:
        return "\ufffd" if self.half else ""


def request(**options: Any) -> Request:
    return Request(0, [1], SamplingParams(**{"max_tokens": 20, **options}), 32, eos=(29,), text=Letters())


def emit(r: Request, *tokens: int) -> int:
    return r.accept(tokens, [-1] * len(tokens))


def test_the_end_of_sequence_inside_an_accepted_path_ends_the_answer_there() -> None:
    r = request()
    assert emit(r, 0, 29, 1, 2) == 2
    assert (r.output, r.settled, r.finish_reason) == ([0, 29], "a", "stop")


def test_the_length_limit_inside_an_accepted_path_ends_the_answer_there() -> None:
    r = request(max_tokens=2)
    assert emit(r, 0, 1, 2) == 2
    assert (r.output, r.settled, r.finish_reason) == ([0, 1], "ab", "length")


def test_a_stop_string_across_token_borders_is_cut_out_of_the_text() -> None:
    r = request(stop=("bcd",))
    emit(r, 0, 1, 2)
    assert r.visible() == 1, "'bc' may still become the stop string and is not shown"
    assert emit(r, 3, 4) == 1
    assert (r.settled, r.finish_reason, r.output) == ("a", "stop", [0, 1, 2, 3])


def test_what_was_held_back_is_shown_when_it_turns_out_harmless() -> None:
    r = request(stop=("bcd",))
    emit(r, 0, 1, 2, 4)
    assert r.visible() == 4 and r.settled == "abce"


def test_the_first_of_several_stop_strings_wins() -> None:
    r = request(stop=("cd", "bc"))
    emit(r, 0, 1, 2, 3)
    assert r.settled == "a" and r.output == [0, 1, 2]


def test_half_a_character_at_the_end_is_shown_as_unreadable_not_lost() -> None:
    r = request(max_tokens=2)
    emit(r, 0, 30)
    assert r.settled == "a\ufffd"
    whole = request()
    emit(whole, 30, 31)
    assert whole.settled == "é"


def test_ignored_ends_and_min_tokens_let_the_answer_go_on() -> None:
    free = request(ignore_eos=True, max_tokens=3)
    emit(free, 29, 29, 0)
    assert free.finish_reason == "length" and free.output == [29, 29, 0]
    late = request(min_tokens=3, stop=("a",))
    assert emit(late, 0, 1, 0, 5) == 3 and late.settled == "ab"


def test_stop_tokens_end_like_the_models_own() -> None:
    r = request(stop_token_ids=(7,))
    assert emit(r, 0, 7, 1) == 2 and r.finish_reason == "stop"


@pytest.mark.parametrize(
    ("tokens", "reason", "detail"),
    [
        ([0, 29], "stop", "eos"),
        ([0, 7], "stop", "stop_token"),
        ([0, 1, 2], "stop", "stop_string"),
        ([0, 1, 1], "length", "max_tokens"),
    ],
)
def test_what_ended_an_answer_is_said(tokens: list[int], reason: str, detail: str) -> None:
    r = request(stop_token_ids=(7,), stop=("c",), max_tokens=3)
    emit(r, *tokens)
    assert (r.finish_reason, r.finish_detail) == (reason, detail)


def test_a_full_context_is_told_from_a_reached_limit() -> None:
    full, cancelled = request(), request()
    full.finish("length")
    cancelled.finish("cancelled")
    assert full.finish_detail == "context" and cancelled.finish_detail is None


def test_the_stop_can_be_kept_in_the_text() -> None:
    r = request(stop=("bc",), include_stop_str_in_output=True)
    emit(r, 0, 1)
    assert r.visible() == 2, "nothing will be taken back"
    emit(r, 2, 3)
    assert (r.settled, r.finish_detail) == ("abc", "stop_string")
    token = request(stop_token_ids=(7,), include_stop_str_in_output=True)
    emit(token, 0, 7)
    assert (token.settled, token.marks) == ("ah", [1, 2])


def test_a_seed_is_kept_and_a_missing_one_is_drawn_afresh() -> None:
    assert request(seed=5).seed == 5
    drawn = {request().seed for _ in range(20)}
    assert len(drawn) == 20 and all(0 <= seed < 2**32 for seed in drawn)


@pytest.mark.parametrize("reason", ["cancelled", "length", "error"])
def test_a_request_ends_once(reason: str) -> None:
    r = request()
    emit(r, 0, 29)
    r.finish(reason)  # type: ignore[arg-type]
    assert r.finish_reason == "stop"


def test_known_tokens_can_be_read_across_prompt_and_output() -> None:
    r = Request(0, [1, 2, 3], SamplingParams(), 9)
    r.output = [4, 5]
    for start in range(6):
        for stop in range(start, 6):
            assert r.known_from(start, stop) == [1, 2, 3, 4, 5][start:stop]
    assert r.known_tail([7], 3) == [4, 5, 7] and r.known_tail([7, 8], 1) == [8] and r.known_tail([], 0) == []


def test_rounds_are_counted_by_what_they_kept() -> None:
    s = Stats()
    for depth, nodes, kept in ((3, 5, 3), (3, 3, 1), (2, 2, 0), (0, 0, 0)):
        s.count(depth, nodes, kept)
    assert (s.rounds_all, s.rounds_some, s.rounds_none, s.target_passes) == (1, 1, 1, 4)
    assert s.acceptance_by_position == [2 / 3, 1 / 3, 1 / 2] and s.draft_tokens == 10


def test_text_that_was_let_pass_before_min_tokens_is_not_taken_back() -> None:
    r = request(min_tokens=3, stop=("b", "cde"))
    emit(r, 0, 1, 5)
    assert r.settled == "abf" and r.visible() == 3
    emit(r, 6, 1)
    assert r.settled == "abfg" and r.finish_reason == "stop"


def test_a_path_past_an_end_is_known_to_be_over() -> None:
    r = request(min_tokens=3)
    r.output = [1]
    assert not r.ended_by([29]) and r.ended_by([2, 29]) and not r.ended_by([2, 3])
