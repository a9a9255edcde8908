"""A pool keeps the newest phrases of each token, never more than it may, and those of tenants apart."""

import random

import pytest

from draftwood.drafters.phrases import Phrasebook, PhrasePool


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


def test_tenants_have_pools_of_their_own_and_the_one_unused_for_longest_goes() -> None:
    book = Phrasebook(3, tenants=2)
    book.pool("a").add(1, (2, 3))
    assert book.pool("b").newest(1, 9) == [] and book.pool("a").newest(1, 9) == [(2, 3)]
    book.pool("c")
    assert set(book.pools) == {"a", "c"} and book.pool("a").newest(1, 9) == [(2, 3)]
