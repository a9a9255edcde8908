"""Answers are kept by tenant, to the end of every request, in a bounded number of tokens."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core.request import Request
from draftwood.core.sampling.params import SamplingParams
from draftwood.drafters.retrieval.answers import Answers
from draftwood.kernels.suffix_index import PlainIndex


def answers(max_tokens: int = 100) -> Answers:
    return Answers(partial(PlainIndex, 6), max_tokens)


def request(tenant: str = "", **options: Any) -> Request:
    return Request(0, [1], SamplingParams(tenant=tenant, **options), 100)


def answered(store: Answers, tokens: list[int], tenant: str = "") -> None:
    """A request that comes, writes these tokens and ends."""
    store.watch(one := request(tenant))
    one.output += tokens
    one.finish("cancelled")
    store.update()


def count(store: Answers, tokens: list[int], tenant: str = "") -> int:
    index = store.index(tenant)
    return 0 if index is None else index.count(tokens)


def test_running_and_past_answers_are_found_and_prompts_are_not() -> None:
    store = answers()
    store.watch(one := request())
    assert store.index("") is None
    one.output += [7, 8]
    store.update()
    assert count(store, [7, 8]) == 1 and count(store, [1, 7]) == 0
    one.output += [9]
    one.finish("cancelled")
    store.update()
    assert count(store, [7, 8, 9]) == 1, "the last tokens too"
    assert not store.running, "a request that has ended is not kept"


@pytest.mark.parametrize(("asks", "found"), [("b", 0), ("a", 1)])
def test_a_tenant_finds_its_own_answers_only(asks: str, found: int) -> None:
    store = answers()
    answered(store, [7, 8], "a")
    assert count(store, [7, 8], asks) == found


def test_the_oldest_answers_of_whoever_holds_most_make_room() -> None:
    store = answers(10)
    answered(store, [1, 2, 3], "small")
    for start in (10, 20, 30):
        answered(store, [start, start + 1, start + 2], "large")
    assert store.size == 9
    assert [count(store, [n], "large") for n in (10, 20, 30)] == [0, 1, 1]
    assert count(store, [1, 2, 3], "small") == 1
    answered(store, list(range(50, 60)), "new")
    assert set(store.tenants) == {"new"} and store.size == 10, "a tenant of whom nothing is left is forgotten"


def test_a_running_answer_that_finds_no_room_is_not_continued_with_a_gap() -> None:
    store = answers(4)
    store.watch(one := request())
    store.watch(other := request())
    one.output += [1, 2, 3]
    other.output += [4]
    store.update()
    one.output += [5]
    store.update()
    other.finish("cancelled")
    store.update()
    one.output += [6]
    one.finish("cancelled")
    store.update()
    assert store.size == 4 and [count(store, t) for t in ([1, 2, 3], [3, 5], [3, 6], [5], [6])] == [1, 0, 0, 0, 0]


@settings(deadline=None, max_examples=50)
@given(written=st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 3), max_size=9)), max_size=20))
def test_no_more_tokens_are_held_than_allowed_and_the_newest_are(written: list[tuple[str, list[int]]]) -> None:
    store = answers(20)
    for tenant, tokens in written:
        answered(store, tokens, tenant)
        assert store.size == sum(count(store, [t], name) for name in "abc" for t in range(4)) <= 20
        assert not tokens or count(store, tokens[:6], tenant) > 0
