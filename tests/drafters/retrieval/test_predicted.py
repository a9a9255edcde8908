"""An answer that leaves its prediction is followed again after a few tokens, whatever was inserted, deleted or replaced."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.edits import Edits
from draftwood.drafters.retrieval.merged import Place, merge
from draftwood.drafters.retrieval.predicted import Counts, Offer, Predicted, placed
from draftwood.drafters.retrieval.prediction import log_chance
from draftwood.drafters.retrieval.retrieved import Retrieved

DEPTH = 5


class Unlearning(Edits):
    def learn(self, old: Sequence[int], new: Sequence[int]) -> None:
        return None


def predicted(tokens: Sequence[int], output: Sequence[int] = ()) -> Predicted:
    request = Request(0, [1], SamplingParams(prediction=tuple(tokens), max_tokens=10_000), 10_000)
    request.output = list(output)
    return Predicted.of(request)


def best(found: Retrieved) -> list[int]:
    """The most probable chain."""
    chain, at = list[int](), 0
    while below := [i for i, parent in enumerate(found.parents) if parent == at]:
        first = max(below, key=lambda i: found.score[i])
        chain.append(found.tokens[first])
        at = first + 1
    return chain


def drafts(
    tokens: Sequence[int], answer: Sequence[int], strides: Sequence[int] = (1,)
) -> Iterator[tuple[int, list[int]]]:
    """(length of the answer, the most probable chain after it), the answer arriving some tokens at a time."""
    own, size, turn = predicted(tokens), 0, 0
    while True:
        own.request.output = list(answer[:size])
        yield size, best(merge([offer.place for offer in own.find(DEPTH, None)], 64, log_chance))
        if size == len(answer):
            return
        size = min(len(answer), size + strides[turn % len(strides)])
        turn += 1


def test_the_beginning_is_drafted_first_and_then_what_follows() -> None:
    tokens = list(range(10, 22))
    for size, chain in drafts(tokens, tokens):
        assert chain == tokens[size : size + DEPTH]


SPANS = st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 8))
STRIDES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@given(SPANS, STRIDES)
def test_after_a_changed_span_one_token_that_stands_nowhere_else_is_enough(
    span: tuple[int, int, int], strides: list[int]
) -> None:
    start, deleted, inserted = span
    tokens = list(range(100, 150))
    answer = [*tokens[:start], *range(500, 500 + inserted), *tokens[start + deleted :]]
    back = start + inserted  # where the answer has the first token of the prediction again
    for size, chain in drafts(tokens, answer, strides):
        if size > back:
            assert chain == answer[size : size + DEPTH]


@given(
    st.lists(st.integers(0, 5), min_size=20, max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6), st.lists(st.integers(0, 5), max_size=6)), max_size=3),
    STRIDES,
)
def test_any_edits_are_left_behind_after_three_tokens_that_stand_only_there(
    tokens: list[int], edits: list[tuple[int, int, list[int]]], strides: list[int]
) -> None:
    """Where the answer's last three tokens stand once in the prediction, what follows them there is drafted."""
    answer = list(tokens)
    for start, deleted, new in edits:
        start = min(start, len(answer))
        answer[start : start + deleted] = new
    own = predicted(tokens)
    own.edits = Unlearning()  # a learned edit is a reason to expect something else
    size, turn = 0, 0
    while size < len(answer):
        size = min(len(answer), size + strides[turn % len(strides)])
        turn += 1
        own.request.output = answer[:size]
        found = merge([offer.place for offer in own.find(DEPTH, None)], 64, log_chance)
        places = [end for end in range(3, len(tokens) + 1) if tokens[end - 3 : end] == answer[max(0, size - 3) : size]]
        if len(places) == 1 and places[0] < len(tokens):
            offered = [t for t, parent in zip(found.tokens, found.parents, strict=True) if parent == 0]
            assert tokens[places[0]] in offered


def test_a_follower_that_never_looks_for_an_anchor_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = list(range(100, 130))
    answer = [*tokens[:8], 500, 501, *tokens[12:]]
    right = dict(drafts(tokens, answer))
    monkeypatch.setattr(Predicted, "_anchored", lambda self, depth, spelling: [])
    wrong = dict(drafts(tokens, answer))
    assert right[14] == tokens[16:21] and wrong[14] == [] and right[5] == wrong[5]


def test_a_replacement_of_equal_length_goes_on_at_once() -> None:
    tokens = list(range(100, 120))
    own = predicted(tokens, [*tokens[:4], 500])
    chains = [list(offer.place.tokens) for offer in own.find(3, None)]
    assert tokens[5:8] in chains


def test_equal_places_are_drafted_side_by_side_and_the_nearest_after_the_cursor_first() -> None:
    tokens = [1, 2, 3, 10, 11, 1, 2, 3, 20, 21, 1, 2, 3, 30]
    own = predicted(tokens, [1, 2, 3, 10, 9, 1, 2, 3])
    firsts = [offer.place.tokens[0] for offer in own.find(3, None)]
    assert firsts[:3] == [20, 30, 10]


def test_a_renamed_token_is_drafted_under_its_new_name_from_the_second_time_on() -> None:
    tokens = [7, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 7, 12]
    answer = [70 if t == 7 else t for t in tokens]
    seen = dict(drafts(tokens, answer))
    assert seen[5] == [5, 70, 8, 9, 10]
    assert seen[10] == [11, 70, 12]


def test_a_long_prediction_ends_and_an_answer_may_go_on() -> None:
    assert [chain for _, chain in drafts([5, 6], [5, 6, 7, 8])] == [[5, 6], [6], [], [], []]


def request(output: list[int]) -> Request:
    made = Request(0, [1], SamplingParams(), 100)
    made.output = output
    return made


def test_tokens_count_once_they_became_text_and_positions_count_once_as_rejected() -> None:
    counts, stats = Counts(), (one := request([1, 2, 3])).stats
    counts.add(0, drafted=[4, 5, 6, 7, -1], kept=[4, 5, -1, 6])
    counts.settle(one)
    assert (stats.accepted_prediction_tokens, stats.rejected_prediction_tokens) == (2, 2), "the fourth was cut off"
    one.output += [9, 9, 9]
    counts.add(3, drafted=[6, 7], kept=[6])
    counts.settle(one)
    counts.settle(one)
    assert (stats.accepted_prediction_tokens, stats.rejected_prediction_tokens) == (3, 1)


def test_nodes_of_a_verified_tree_are_found_by_their_paths() -> None:
    offers = [Offer(Place([1, 2, 3], 1.0, 0), [10, 11, 12]), Offer(Place([1, 4], 1.0, 0), [20, 21])]
    tokens, parents = [0, 1, 4, 2, 9, 3, 3], [-1, 0, 1, 1, 1, 3, 4]
    assert placed(offers, tokens, parents, [True] * 7) == {1: 10, 2: 21, 3: 11, 5: 12}
    assert placed(offers, tokens, parents, [True, True, True, False, True, True, True]) == {1: 10, 2: 21}
