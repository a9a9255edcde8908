"""Counts of n-grams in a store are those of a scan."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.drafters.retrieval.stores import counts
from small_stores import followers, made_store

TOKEN = st.integers(0, 3)
CORPUS = st.lists(st.lists(TOKEN, min_size=1, max_size=40), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(CORPUS, st.lists(TOKEN, min_size=1, max_size=5), st.sampled_from([4, 70_000]), st.sampled_from([0, 2, 48]))
def test_a_context_and_what_follows_it_are_counted_as_by_a_scan(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[list[int]], context: list[int], vocab_size: int, few: int
) -> None:
    store = made_store(tmp_path_factory.mktemp("s") / "s", corpus, vocab_size)
    after = followers(corpus, context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "FEW", few)
        found = counts.followers(store, context, [3, 0, 1])
    assert found == (len(after), [sum(rest[:1] == [token] for rest in after) for token in (3, 0, 1)])


def test_all_chunks_are_counted_and_what_no_store_holds_is_counted_as_zero(tmp_path: Path) -> None:
    store = made_store(tmp_path / "s", [[1, 2, 3] * 10], 8, chunk_tokens=9)
    assert len(store.chunks) > 2
    assert counts.followers(store, [1, 2], [3, 2, 9]) == (10, [10, 0, 0])
    assert counts.followers(store, [1, 7], [3]) == (0, [0])
    assert counts.followers(store, [8], [3]) == counts.followers(store, [], [3]) == (0, [0]), "8 ends documents"
