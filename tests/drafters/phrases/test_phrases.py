"""A pool keeps the newest phrases of each token, never more than it may, and those of tenants apart."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.drafters.phrases.phrases import Phrasebook, PhrasePool


def test_the_newest_phrases_come_first_and_one_that_comes_again_is_the_newest() -> None:
    pool = PhrasePool(3)
    for phrase in ((1, 1), (2, 2), (3, 3), (1, 1)):
        pool.add(7, phrase)
    assert pool.newest(7, 9) == [(1, 1), (3, 3), (2, 2)] and pool.newest(7, 1) == [(1, 1)]
    assert pool.newest(8, 9) == [] and pool.size == 3


def test_the_least_recently_refreshed_phrase_is_dropped() -> None:
    pool = PhrasePool(2)
    for phrase in ((1, 1), (2, 2), (1, 1), (3, 3)):
        pool.add(7, phrase)
    assert pool.newest(7, 9) == [(3, 3), (1, 1)]


def test_a_correction_keeps_the_place_and_doubles_nothing() -> None:
    pool = PhrasePool(4)
    for phrase in ((1, 1), (2, 2), (3, 3)):
        pool.add(7, phrase)
    pool.correct(7, (2, 2), (5, 5))
    assert pool.newest(7, 9) == [(3, 3), (5, 5), (1, 1)]
    pool.correct(7, (5, 5), (1, 1))
    assert pool.newest(7, 9) == [(3, 3), (1, 1)] and pool.size == 2
    pool.correct(7, (9, 9), (4, 4))
    pool.correct(8, (9, 9), (4, 4))
    assert pool.newest(7, 9) == [(3, 3), (1, 1)] and pool.newest(8, 9) == []


@pytest.mark.parametrize("most", [5, 40])
def test_no_bound_is_ever_exceeded(most: int) -> None:
    rng, pool = random.Random(0), PhrasePool(3, most)
    for _ in range(2000):
        key, phrase = rng.randrange(30), (rng.randrange(4), rng.randrange(4))
        if rng.random() < 0.3 and (known := pool.newest(key, 3)):
            pool.correct(key, rng.choice(known), phrase)
        else:
            pool.add(key, phrase)
        assert pool.size == sum(map(len, pool.phrases.values())) <= most
        assert all(1 <= len(own) <= 3 for own in pool.phrases.values())
    assert pool.size == most


PHRASES = st.integers(0, 2).map(lambda token: (token,))
EVENTS = st.lists(st.tuples(st.integers(0, 3), PHRASES, st.none() | PHRASES), max_size=40)


@given(EVENTS, st.integers(1, 3), st.integers(1, 6))
def test_a_pool_is_that_of_plain_lists(events: list[tuple[int, Any, Any]], per_key: int, most: int) -> None:
    """A phrase enters, or (with another one behind it) is corrected; then every key is compared. Of the lists the first are
    the oldest."""
    pool, lists = PhrasePool(per_key, most), list[tuple[int, list[Any]]]()
    for key, phrase, new in events:
        own = next((found for k, found in lists if k == key), [])
        if new is None:
            pool.add(key, phrase)
            kept = [*(each for each in own if each != phrase), phrase][-per_key:]
            lists = [*((k, found) for k, found in lists if k != key), (key, kept)]
            while sum(len(found) for _, found in lists) > most:
                lists[0][1].pop(0)
                lists = [(k, found) for k, found in lists if found]
        else:
            pool.correct(key, phrase, new)
            if phrase in own and phrase != new:
                own[:] = [new if each == phrase else each for each in own if each != new]
        assert [pool.newest(k, 9) for k in range(4)] == [
            next((found[::-1] for other, found in lists if other == k), []) for k in range(4)
        ]
        assert pool.size == sum(len(found) for _, found in lists)


def test_tenants_have_pools_of_their_own_and_the_one_unused_for_longest_goes() -> None:
    book = Phrasebook(3, tenants=2)
    book.pool("a").add(1, (2, 3))
    assert book.pool("b").newest(1, 9) == [] and book.pool("a").newest(1, 9) == [(2, 3)]
    book.pool("c")
    assert set(book.pools) == {"a", "c"} and book.pool("a").newest(1, 9) == [(2, 3)]
