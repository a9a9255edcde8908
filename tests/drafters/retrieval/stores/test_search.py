"""Lookups find what a scan of all documents finds, and the trees they give are closed and in one order only."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.drafters.retrieval.stores import search
from draftwood.drafters.retrieval.stores.search import Node, heaviest, longest_match, occurrences
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.errors import StoreError
from small_stores import followers, heaviest_paths, longest_suffix, made_store

TOKEN = st.integers(0, 3)
CORPUS = st.lists(st.lists(TOKEN, max_size=40), max_size=5)


def paths_of(found: list[Node]) -> list[tuple[tuple[int, ...], int]]:
    """Every node as its path and weight; a parent must stand before its child."""
    paths: list[tuple[int, ...]] = [()]
    for i, node in enumerate(found, 1):
        assert 0 <= node.parent < i
        paths.append((*paths[node.parent], node.token))
    return [(path, node.weight) for path, node in zip(paths[1:], found, strict=True)]


def looked_up(
    store: Store, text: list[int], least: int, most: int, depth: int, nodes: int, places: int = 10_000
) -> tuple[int, int, list[tuple[tuple[int, ...], int]]]:
    match = longest_match(store, text, least, most)
    if not match.span:
        return 0, 0, []
    return match.span, match.count, paths_of(heaviest(store, occurrences(store, match, places), depth, nodes))


@settings(max_examples=150, deadline=None)
@given(
    corpus=CORPUS,
    text=st.lists(TOKEN, max_size=12),
    least=st.integers(1, 3),
    more=st.integers(0, 6),
    depth=st.integers(1, 5),
    nodes=st.integers(1, 12),
    chunk=st.sampled_from([1 << 25, 17]),
    vocab_size=st.sampled_from([4, 70_000]),
    few=st.sampled_from([0, 48]),
)
def test_a_lookup_finds_what_a_scan_finds(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[list[int]], text: list[int], least: int, more: int,
    depth: int, nodes: int, chunk: int, vocab_size: int, few: int,
) -> None:  # fmt: skip
    store = made_store(tmp_path_factory.mktemp("s") / "s", corpus, vocab_size, chunk)
    # A chunk's border is found like any other place, but no pattern is found across it.
    whole = [token for document in corpus if document for token in (*document, vocab_size)]
    parts = [whole[at : at + chunk] for at in range(0, len(whole), chunk)]
    span = longest_suffix(parts, text, least, least + more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "FEW", few)
        found = looked_up(store, text, least, least + more, depth, nodes)
    if not span:
        assert found == (0, 0, [])
        return
    starts = [
        first + at + span
        for first, part in zip(range(0, len(whole), chunk), parts, strict=True)
        for at in range(len(part) - span + 1)
        if part[at : at + span] == text[-span:]
    ]
    rows = [whole[at : whole.index(vocab_size, at)] for at in starts if at < len(whole)]
    assert found == (span, len(starts), heaviest_paths(rows, depth, nodes))
    if chunk > len(whole):
        assert found[1:] == (len(own := followers(corpus, text[-span:])), heaviest_paths(own, depth, nodes))


def test_weights_rank_first_then_length_then_token_ids(tmp_path: Path) -> None:
    store = made_store(tmp_path / "s", [[1, 2, 7, 3], [1, 2, 5, 3], [1, 2, 5, 4], [1, 2]])
    assert looked_up(store, [1, 2], 2, 16, 10, 64) == (
        2, 4, [((5,), 2), ((7,), 1), ((5, 3), 1), ((5, 4), 1), ((7, 3), 1)],
    )  # fmt: skip


@pytest.mark.parametrize("few", [0, 1000])
def test_every_smaller_budget_gives_the_beginning_of_the_larger_tree(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FEW", few)
    rng = np.random.default_rng(0)
    store = made_store(tmp_path / "s", [rng.integers(0, 3, 400).tolist() for _ in range(3)])
    match = longest_match(store, [0, 1], 2, 16)
    at = occurrences(store, match, 5000)
    whole = heaviest(store, at, 6, 64)
    assert len(whole) == 64 and len(at) > 48
    for nodes in range(1, 64):
        assert heaviest(store, at, 6, nodes) == whole[:nodes]


def test_some_of_many_occurrences_have_the_shares_of_all(tmp_path: Path) -> None:
    """The first ones would all go on with the smallest token."""
    store = made_store(tmp_path / "s", [[1, 2, follower] for follower in (3, 4, 5, 6) for _ in range(100)])
    match = longest_match(store, [1, 2], 2, 16)
    assert match.count == 400
    some = paths_of(heaviest(store, occurrences(store, match, 40), 1, 8))
    assert some == [((3,), 10), ((4,), 10), ((5,), 10), ((6,), 10)]


def test_a_text_with_tokens_that_the_store_cannot_hold_is_followed_behind_them(tmp_path: Path) -> None:
    store = made_store(tmp_path / "s", [[1, 2, 3], [4, 1, 2, 5]])
    assert looked_up(store, [4, 99_999, 1, 2], 2, 16, 1, 8) == (2, 2, [((3,), 1), ((5,), 1)])
    assert looked_up(store, [1, 2, 8], 2, 16, 1, 8) == (0, 0, []), "the separator is no token"


def test_an_empty_store_and_one_shorter_than_the_span_have_answers(tmp_path: Path) -> None:
    assert looked_up(made_store(tmp_path / "a", []), [1, 2, 3], 2, 16, 10, 64) == (0, 0, [])
    assert looked_up(made_store(tmp_path / "b", [[1, 2, 3]]), [7, 1, 2], 2, 16, 10, 64) == (2, 1, [((3,), 1)])
    assert looked_up(made_store(tmp_path / "c", [[1]]), [1], 2, 16, 10, 64) == (0, 0, []), "a text shorter than a span"


@pytest.mark.parametrize("few", [0, 48])
def test_ties_do_not_depend_on_the_chunk_a_continuation_stands_in(
    tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "FEW", few)
    store = made_store(tmp_path / "s", [[1, 2, 7, 5], [1, 2, 6, 5], [1, 2, 3, 5]], chunk_tokens=5)
    assert len(store.chunks) == 3
    assert looked_up(store, [1, 2], 2, 16, 2, 5) == (
        2, 3, [((3,), 1), ((6,), 1), ((7,), 1), ((3, 5), 1), ((6, 5), 1)],
    )  # fmt: skip


def test_a_suffix_outside_its_chunk_is_reported_instead_of_followed(tmp_path: Path) -> None:
    info = made_store(tmp_path / "s", [[1, 2, 3]] * 50).info
    whole, reported = (tmp_path / "s").read_bytes(), 0
    for place in range(info.size):
        at = info.suffixes_at + 4 * place
        (tmp_path / "s").write_bytes(whole[:at] + b"\xff\xff\xff\x7f" + whole[at + 4 :])
        try:
            store = Store.open(tmp_path / "s")
        except StoreError:
            continue
        match = longest_match(store, [1, 2], 2, 16)
        if any(start <= place < stop for _, start, stop in match.ranges):
            with pytest.raises(StoreError, match="a suffix lies outside its chunk\nhint: build it again"):
                occurrences(store, match, 5000)
            reported += 1
    assert reported > 10
