"""Continuations merged into a tree are the same continuations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.drafters.retrieval.trie import Trie, trie_of

END = 4


def paths(tree: Trie) -> dict[tuple[int, ...], float]:
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        found.append((*found[parent], token))
    return dict(zip(found[1:], tree.weights, strict=True))


@given(st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=5), st.floats(0.1, 2)), max_size=8))
def test_a_beginning_weighs_as_much_as_the_continuations_that_have_it(rows: list[tuple[list[int], float]]) -> None:
    tree = trie_of([row for row, _ in rows], [weight for _, weight in rows], END)
    expected: dict[tuple[int, ...], float] = {}
    for row, weight in rows:
        whole = row[: next((i for i, token in enumerate(row) if token >= END), len(row))]
        for size in range(1, len(whole) + 1):
            expected[tuple(whole[:size])] = expected.get(tuple(whole[:size]), 0.0) + weight
    assert paths(tree) == pytest.approx(expected)
    assert len(tree.tokens) == len(expected), "no node twice"
    assert all(parent <= i for i, parent in enumerate(tree.parents)), "parents stand before their children"
    assert tree.levels == [len(path) for path in paths(tree)]
