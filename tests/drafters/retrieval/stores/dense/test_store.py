"""An open dense store is what was written, or it is refused: cut short, changed, of another model or backend."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.drafters.retrieval.stores.container import HEAD
from draftwood.drafters.retrieval.stores.dense.format import backend_of
from draftwood.drafters.retrieval.stores.dense.neighbours import EveryKey
from draftwood.drafters.retrieval.stores.dense.store import FOLLOWED, DenseStore
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.errors import StoreError
from small_dense import fading, made_dense, model_info
from small_stores import made_store

ROOT = Path(__file__).resolve().parents[5]
TEXTS = [np.random.default_rng(i).integers(0, 40, 60).tolist() for i in range(4)]


def test_a_stored_state_finds_its_own_token_first(tmp_path: Path) -> None:
    store = made_dense(tmp_path / "s", TEXTS, 40)
    hidden = np.concatenate([h[:-2] for h in fading(TEXTS)])
    places, near = store.nearest(hidden, 5)
    assert (places[:, 0] == store.places).mean() > 0.99
    np.testing.assert_allclose(near[:, 0], 1, atol=5e-3)
    assert (np.diff(near, axis=1) <= 1e-6).all(), "nearest first"


@pytest.mark.parametrize(("vocab_size", "width"), [(40, 2), (65_535, 2), (65_536, 4), (200_000, 4)])
def test_what_was_written_is_read(tmp_path: Path, vocab_size: int, width: int) -> None:
    store = made_dense(tmp_path / "s", [[*text, vocab_size - 1] for text in TEXTS], vocab_size)
    assert store.info.width == width
    assert store.tokens.tolist() == [t for text in TEXTS for t in (*text, vocab_size - 1, vocab_size)]
    store.check()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), max_size=14), min_size=1, max_size=5).filter(lambda c: max(map(len, c)) > 2),
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.integers(1, 9),
    st.sampled_from([4, 1024]),
)
def test_a_search_in_what_was_saved_finds_what_a_comparison_with_every_state_finds(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[list[int]], text: list[int], count: int, window: int
) -> None:
    store = made_dense(tmp_path_factory.mktemp("s") / "s", corpus, 7, window=window)
    store = replace(store, neighbours=EveryKey(store.keys))
    documents = [document for document in corpus if document]
    found: list[tuple[int, np.ndarray]] = []  # where a token stands, and the state that produced it
    first = 0
    for document in documents:
        parts = [document[at : at + window] for at in range(0, len(document), window)]
        states = [h for part in fading(parts) for h in part]
        found += [(first + i, states[i - 1]) for i in range(1, len(document) - 1) if i % window]
        first += len(document) + 1
    assert store.tokens.tolist() == [t for document in documents for t in (*document, 7)]
    assert store.places.tolist() == [place for place, _ in found]
    (query,) = store.projection.keys(fading([text])[0][-1:]).astype(np.float32)
    near = store.projection.keys(np.array([h for _, h in found])).astype(np.float32) @ query
    places, cosines = store.nearest(fading([text])[0][-1:], count)
    best = np.sort(near)[::-1][:count]
    np.testing.assert_allclose(cosines[0, : len(best)], best, atol=4e-3)
    by_place = dict(zip([place for place, _ in found], near.tolist(), strict=True))
    kept = places[0][places[0] >= 0].tolist()
    assert len(set(kept)) == len(kept) == min(count, len(found))
    np.testing.assert_allclose([by_place[place] for place in kept], best, atol=4e-3)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    made_dense(path, TEXTS, 40)
    whole = path.read_bytes()
    for size in (0, 1, HEAD.size - 1, HEAD.size, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"is no datastore|is damaged"):
            DenseStore.open(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(StoreError, match=r"is damaged: it has \d+ bytes instead of \d+\nhint: build it again"):
        DenseStore.open(path)


def test_every_flipped_bit_is_found_and_none_is_followed_out_of_the_file(tmp_path: Path) -> None:
    """At once in the ends, the projection and the graph; by `check` elsewhere. Until then a search answers with places of
    the store or nothing."""
    path = tmp_path / "s"
    info = made_dense(path, TEXTS[:1], 40).info
    whole, sections = path.read_bytes(), info.sections()
    rng, hidden = np.random.default_rng(0), fading(TEXTS[:1])[0][:4]
    at_once = later = 0
    for byte in rng.permutation(len(whole))[:1500].tolist():
        changed = bytearray(whole)
        changed[byte] ^= 1 << int(rng.integers(8))
        (tmp_path / "changed").write_bytes(changed)
        name = next((n for n, (start, size) in sections.items() if start <= byte < start + size), None)
        ends = byte < HEAD.size or byte >= info.data_end
        if name is None and not ends:
            continue  # between two sections
        if ends or name in FOLLOWED:
            with pytest.raises(StoreError):
                DenseStore.open(tmp_path / "changed")
            at_once += 1
            continue
        try:
            store = DenseStore.open(tmp_path / "changed")
        except StoreError as error:
            assert "is damaged: a key" in str(error)
            continue
        places, _ = store.nearest(hidden, 50)
        assert (places >= -1).all() and (places < info.size).all()
        with pytest.raises(StoreError, match=f"the section {name} does not match its checksum"):
            store.check()
        later += 1
    assert at_once > 100 and later > 100


def test_a_file_of_another_kind_or_version_is_refused(tmp_path: Path) -> None:
    made_store(tmp_path / "s", [[1, 2]])
    with pytest.raises(StoreError, match=r"is a datastore, not a dense datastore\nhint: .* --dense"):
        DenseStore.open(tmp_path / "s")
    made_dense(tmp_path / "d", TEXTS, 40)
    with pytest.raises(StoreError, match="is a dense datastore, not a datastore"):
        Store.open(tmp_path / "d")
    changed = bytearray((tmp_path / "d").read_bytes())
    changed[8] = 2
    (tmp_path / "d").write_bytes(changed)
    with pytest.raises(StoreError, match="has version 2 of the format, this program reads 1"):
        DenseStore.open(tmp_path / "d")
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(StoreError, match="cannot be opened"):
            DenseStore.open(missing)


def test_states_of_another_model_or_backend_are_refused(tmp_path: Path) -> None:
    own = model_info(40, backend="int8 amx", dtype=torch.float32, name="mine")
    store = made_dense(tmp_path / "s", TEXTS, info=own)
    store.need_target(own)
    store.need_target(replace(own, backend="int8 stock"))  # equal sums on every instruction set
    with pytest.raises(StoreError, match=r"another model: f00d on int8 float32 \(mine\); the target is beef on int8"):
        store.need_target(replace(own, fingerprint="beef"))
    for other in ({"backend": "float32"}, {"backend": "bfloat16", "dtype": torch.bfloat16}):
        with pytest.raises(
            StoreError, match=r"another backend: f00d .*\nhint: build one for this target, with the same"
        ):
            store.need_target(replace(own, **other))
    assert backend_of(model_info(backend="transformers float32")) == "transformers float32"


READ = """
import sys
from draftwood.drafters.retrieval.stores.dense.store import DenseStore
from small_dense import fading
store = DenseStore.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
print(store.nearest(fading([[1, 2, 3, 4]])[0], 5)[0].tolist())
"""


@pytest.mark.slow
def test_two_processes_read_one_store_and_keep_it_while_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    expected = made_dense(path, TEXTS, 40).nearest(fading([[1, 2, 3, 4]])[0], 5)[0].tolist()
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests' / 'helpers'}"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    readers = [subprocess.Popen([sys.executable, "-c", READ, str(path)], **pipes) for _ in range(2)]
    assert [reader.stdout.readline() for reader in readers if reader.stdout] == ["open\n"] * 2
    assert made_dense(path, [[1, 2, 3]], 40).info.num_keys == 1
    assert [reader.communicate("\n")[0].strip() for reader in readers] == [str(expected)] * 2
