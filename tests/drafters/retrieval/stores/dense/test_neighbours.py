"""The graph finds what a product with every key finds, nearly always; where it is missing the product is used."""

import logging
import sys

import numpy as np
import pytest

from draftwood.drafters.retrieval.stores.dense.neighbours import EveryKey, GraphSearch, graph_of, open_graph


def unit(count: int, dims: int = 16, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((count, dims)).astype(np.float32)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float16)


def opened(keys: np.ndarray) -> GraphSearch:
    pytest.importorskip("usearch")
    graph, made_by = graph_of(keys, lambda done, total: None)
    assert made_by.startswith("usearch 2")
    found = open_graph(memoryview(bytes(graph)), keys)
    assert isinstance(found, GraphSearch)
    return found


def test_every_key_is_compared() -> None:
    keys, queries = unit(300), unit(5, seed=1)
    numbers, near = EveryKey(keys).search(queries, 7)
    products = queries.astype(np.float32) @ keys.astype(np.float32).T
    assert numbers.tolist() == [sorted(range(300), key=lambda k: -products[b, k])[:7] for b in range(5)]
    np.testing.assert_allclose(near, np.take_along_axis(products, numbers, 1), atol=1e-6)


def test_the_graph_finds_the_same_and_a_stored_key_finds_itself_first() -> None:
    keys, queries = unit(3000), unit(40, seed=1)
    graph, every = opened(keys), EveryKey(keys)
    (found, near), (expected, products) = graph.search(queries, 10), every.search(queries, 10)
    shared = [len(set(a) & set(b)) / 10 for a, b in zip(found.tolist(), expected.tolist(), strict=True)]
    assert np.mean(shared) > 0.97
    np.testing.assert_allclose(near[:, 0], products[:, 0], atol=5e-3)
    assert (graph.search(keys, 1)[0][:, 0] == np.arange(3000)).all()


@pytest.mark.parametrize("batch", [1, 3])
def test_fewer_keys_than_asked_for_are_told(batch: int) -> None:
    keys = unit(4)
    for search in (EveryKey(keys), opened(keys)):
        numbers, near = search.search(unit(batch, seed=1), 6)
        assert [sorted(row[row >= 0].tolist()) for row in numbers] == [[0, 1, 2, 3]] * batch
        assert numbers.shape[0] == near.shape[0] == batch and (near[numbers < 0] == -1).all()


def test_a_key_that_is_no_number_is_nobodys_neighbour() -> None:
    keys = unit(20)
    keys[3] = np.nan
    numbers, near = EveryKey(keys).search(unit(2, seed=1), 19)
    assert 3 not in numbers[:, :10] and np.isfinite(near).all()


def test_without_the_library_every_key_is_searched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = unit(30)
    monkeypatch.setitem(sys.modules, "usearch", None)
    with caplog.at_level(logging.WARNING, "draftwood"):
        assert graph_of(keys, lambda done, total: None) == (b"", "")
        assert isinstance(open_graph(memoryview(b"graph"), keys), EveryKey)
    assert caplog.text.count("usearch is not installed") == 2


def test_a_graph_that_the_library_cannot_read_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("usearch")
    keys = unit(30)
    other, _ = graph_of(unit(7), lambda done, total: None)
    assert isinstance(open_graph(memoryview(bytes(other)), keys), EveryKey)
    with caplog.at_level(logging.WARNING, "draftwood"):
        assert isinstance(open_graph(memoryview(b"no graph" * 40), keys), EveryKey)
    assert "cannot read the graph" in caplog.text
