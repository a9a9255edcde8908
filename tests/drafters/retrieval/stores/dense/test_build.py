"""A dense store has a key for every token that may be a root; a build leaves a whole store or what was there before."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.drafters.retrieval.stores.build import Piece
from draftwood.drafters.retrieval.stores.dense.build import build_dense
from draftwood.drafters.retrieval.stores.dense.store import DenseStore
from draftwood.errors import OptionError, StoreError
from full_disk import fail_write
from small_dense import HIDDEN, fading, made_dense, model_info, pieces_of
from small_stores import made_store

ROOT = Path(__file__).resolve().parents[5]
TEXTS = [np.random.default_rng(i).integers(0, 8, 30 + i).tolist() for i in range(4)]


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_key_is_the_state_before_its_token_and_needs_one_behind_it(tmp_path: Path) -> None:
    store = made_dense(tmp_path / "s", [[1, 2, 3, 4], [5, 6, 7], [1, 2], [3]])
    assert store.tokens.tolist() == [1, 2, 3, 4, 8, 5, 6, 7, 8, 1, 2, 8, 3, 8]
    assert store.places.tolist() == [1, 2, 6], (
        "2 and 3 of the first text, 6 of the second; the others have nothing behind"
    )
    hidden = np.concatenate([fading([[1, 2, 3, 4]])[0][:2], fading([[5, 6, 7]])[0][:1]])
    np.testing.assert_allclose(store.keys, store.projection.keys(hidden), atol=1e-3)
    assert (store.info.num_documents, store.info.num_tokens, store.info.num_keys) == (4, 10, 3)


def test_a_long_text_is_read_in_windows_and_goes_on_across_them(tmp_path: Path) -> None:
    store = made_dense(tmp_path / "s", [TEXTS[0]], window=8)
    assert store.tokens.tolist() == [*TEXTS[0], 8]
    assert store.places.tolist() == [i for i in range(29) if i % 8], "nothing produced the first token of a window"
    for i, place in enumerate(store.places.tolist()):
        (own,) = fading([TEXTS[0][place - place % 8 : place]])
        np.testing.assert_allclose(store.keys[i], store.projection.keys(own[-1:])[0], atol=1e-3)
    assert made_dense(tmp_path / "t", [TEXTS[0]], info=model_info(max_positions=8)).info.num_keys == store.info.num_keys


def test_of_dialogues_only_answers_are_stored(tmp_path: Path) -> None:
    ids = np.array([1, 2, 3, 4, 5, 6, 7, 1, 2])
    build_dense(tmp_path / "s", [Piece(ids, answers=((2, 5), (6, 9)))], fading, model_info())
    store = DenseStore.open(tmp_path / "s")
    assert store.tokens.tolist() == [3, 4, 5, 8, 7, 1, 2, 8]
    assert store.places.tolist() == [0, 1, 4, 5]
    hidden = fading([ids])[0][[1, 2, 5, 6]]
    np.testing.assert_allclose(store.keys, store.projection.keys(hidden), atol=1e-3)


def test_the_projection_is_fitted_to_the_first_states_and_used_for_all(tmp_path: Path) -> None:
    few, every = (made_dense(tmp_path / name, TEXTS, fitted=n) for name, n in (("a", 40 * HIDDEN), ("b", 1 << 27)))
    assert few.info.num_keys == every.info.num_keys
    hidden = np.concatenate([h[:-2] for h in fading(TEXTS)])
    assert (few.projection.matrix != every.projection.matrix).any()
    for store in (few, every):
        np.testing.assert_allclose(store.keys, store.projection.keys(hidden), atol=1e-3)


@pytest.mark.parametrize("documents", [[], [[]], [[1]], [[1, 2], [3, 4]]])
def test_texts_with_nothing_to_look_up_make_no_store(tmp_path: Path, documents: list[list[int]]) -> None:
    with pytest.raises(OptionError, match="no text has three tokens"):
        made_dense(tmp_path / "s", documents)
    assert left(tmp_path) == []


def test_a_text_shorter_than_a_continuation_ends_where_it_ends(tmp_path: Path) -> None:
    store = made_dense(tmp_path / "s", [[1, 2, 3], *TEXTS])
    place = int(store.places[0])
    assert store.tokens[place : place + 3].tolist() == [2, 3, store.info.separator]


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside a vocabulary of 8"):
        made_dense(tmp_path / "s", [[1, 2, 8, 3]])
    with pytest.raises(OptionError, match="loaded by name"):
        made_dense(tmp_path / "s", TEXTS, info=model_info(fingerprint=""))
    with pytest.raises(StoreError, match="hidden states are not finite"):
        made_dense(tmp_path / "s", TEXTS, read=lambda texts: [h * np.inf for h in fading(texts)])
    for options in ({"window": 1}, {"dims": 0}):
        with pytest.raises(OptionError, match=next(iter(options))):
            made_dense(tmp_path / "s", TEXTS, **options)
    assert left(tmp_path) == []


def test_a_store_of_another_kind_or_no_store_is_not_replaced(tmp_path: Path) -> None:
    made_store(tmp_path / "s", [[1, 2]])
    with pytest.raises(StoreError, match="exists and is a datastore, not a dense datastore"):
        made_dense(tmp_path / "s", TEXTS)
    (tmp_path / "t").write_text("mine")
    with pytest.raises(StoreError, match="exists and is no datastore"):
        made_dense(tmp_path / "t", TEXTS)
    made_dense(tmp_path / "d", TEXTS)
    with pytest.raises(StoreError, match="exists and is a dense datastore, not a datastore"):
        made_store(tmp_path / "d", [[1, 2]])


# --- whatever ends it


def failing(error: BaseException, after: int = 1) -> Any:
    count = iter(range(100))

    def read(texts: Sequence[np.ndarray]) -> list[np.ndarray]:
        if next(count) == after:
            raise error
        return fading(texts)

    return read


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_an_error_of_the_target_leaves_the_store_that_was_there(tmp_path: Path, error: BaseException) -> None:
    before = made_dense(tmp_path / "s", TEXTS[:1]).info
    with pytest.raises(type(error)):
        made_dense(tmp_path / "s", TEXTS * 5, read=failing(error))
    assert left(tmp_path) == ["s"] and DenseStore.open(tmp_path / "s").info == before


@pytest.mark.parametrize("step", range(10))
def test_a_full_disk_leaves_the_store_that_was_there(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made_dense(tmp_path / "s", TEXTS[:1]).info
    fail_write(monkeypatch, "s.partial", step)
    with pytest.raises(StoreError, match=r"s cannot be written: No space left on device\nhint: free some space"):
        made_dense(tmp_path / "s", TEXTS)
    monkeypatch.undo()
    assert left(tmp_path) == ["s"] and DenseStore.open(tmp_path / "s").info == before


def test_two_builds_into_one_path_do_not_meet(tmp_path: Path) -> None:
    """The second one is refused while the first one runs, and the first one finishes."""

    def meanwhile(texts: Sequence[np.ndarray]) -> list[np.ndarray]:
        with pytest.raises(StoreError, match="another build is writing"):
            made_dense(tmp_path / "s", TEXTS[:1])
        assert left(tmp_path) == ["s.partial"]
        return fading(texts)

    store = made_dense(tmp_path / "s", TEXTS, read=meanwhile)
    assert store.info.num_documents == 4 and left(tmp_path) == ["s"]


KILLED = """
import sys, time
from pathlib import Path
from small_dense import fading, made_dense
def read(texts):
    print("reading", flush=True)
    time.sleep(60)
    return fading(texts)
made_dense(Path(sys.argv[1]), [[1, 2, 3]] * 99, read=read)
"""


@pytest.mark.slow
def test_a_killed_build_leaves_the_store_that_was_there_and_the_next_one_works(tmp_path: Path) -> None:
    made_dense(tmp_path / "s", TEXTS[:1])
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests' / 'helpers'}"}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "s")], stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None and process.stdout.readline() == b"reading\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert left(tmp_path) == ["s", "s.partial"] and DenseStore.open(tmp_path / "s").info.num_documents == 1
    with pytest.raises(StoreError):
        DenseStore.open(tmp_path / "s.partial")
    assert made_dense(tmp_path / "s", TEXTS).info.num_documents == 4 and left(tmp_path) == ["s"]


def test_without_the_library_a_store_is_built_and_found_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "usearch", None)
    store = made_dense(tmp_path / "s", TEXTS)
    assert store.info.graph == "" and store.info.graph_bytes == 0
    store.check()
    monkeypatch.undo()
    hidden = fading(TEXTS[:1])[0][:5]
    near = made_dense(tmp_path / "t", TEXTS).nearest(hidden, 9)[1]
    np.testing.assert_allclose(store.nearest(hidden, 9)[1], near, atol=1e-5)


def test_the_same_texts_give_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        made_dense(tmp_path / name, TEXTS * 20)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_progress_is_told_in_tokens_then_in_keys(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    build_dense(
        tmp_path / "s",
        pieces_of(TEXTS * 5),
        fading,
        model_info(dtype=torch.float32),
        progress=lambda *x: told.append(x),
    )
    stages = [stage for stage, _, _ in told]
    assert set(stages) <= {"reading texts", "indexing"} and stages[0] == "reading texts"
    assert all(0 <= done <= total for _, done, total in told)
