"""A build leaves a whole store or what was there before: whatever ends it, and whoever else builds."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood.drafters.retrieval.stores.build import Piece, build_store
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.errors import OptionError, StoreError
from full_disk import fail_write
from small_stores import made_store

SRC = Path(__file__).resolve().parents[4] / "src"
NAMED: dict[str, Any] = {"vocab_size": 8, "tokenizer": "t"}


def piece(*ids: int, ends: bool = True) -> Piece:
    return Piece(np.array(ids, dtype=np.int64), ends)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_pieces_of_one_document_are_joined_and_documents_are_kept_apart(tmp_path: Path) -> None:
    pieces = [piece(1, 2, ends=False), piece(3, ends=False), piece(), piece(), piece(4), piece(5, ends=False)]
    info = build_store(tmp_path / "s", pieces, **NAMED)
    assert Store.open(tmp_path / "s").tokens.tolist() == [1, 2, 3, 8, 4, 8, 5, 8]
    assert (info.num_documents, info.num_tokens) == (3, 5)


def test_the_same_tokens_give_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        made_store(tmp_path / name, [[1, 2, 3], [1, 2]])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("ids", [(8,), (-1,)])
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, ids: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="outside a vocabulary of 8"):
        build_store(tmp_path / "s", [piece(*ids)], **NAMED)
    assert left(tmp_path) == []


def test_an_error_in_the_texts_leaves_the_store_that_was_there(tmp_path: Path) -> None:
    made_store(tmp_path / "s", [[1, 2]])

    def failing() -> Iterator[Piece]:
        yield piece(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "s", failing(), **NAMED)
    assert left(tmp_path) == ["s"] and Store.open(tmp_path / "s").info.num_tokens == 2


@pytest.mark.parametrize("step", range(6))
def test_a_full_disk_leaves_the_store_that_was_there(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_store(tmp_path / "s", [[1, 2]])
    fail_write(monkeypatch, "s.partial", step)
    with pytest.raises(StoreError, match=r"s cannot be written: No space left on device\nhint: free some space"):
        build_store(tmp_path / "s", [piece(1, 2, 3)], **NAMED)
    monkeypatch.undo()
    assert left(tmp_path) == ["s"] and Store.open(tmp_path / "s").info.num_tokens == 2


LIMITED = """
import resource, sys
import numpy as np
from pathlib import Path
from draftwood.drafters.retrieval.stores.build import Piece, build_store
from draftwood.errors import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
try:
    build_store(Path(sys.argv[1]), [Piece(np.arange(7))] * 1500, vocab_size=8, tokenizer="t")
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="no limit of a file's size")
def test_a_real_limit_of_the_file_system_leaves_the_store_that_was_there(tmp_path: Path) -> None:
    made_store(tmp_path / "s", [[1, 2]])
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path / "s")], capture_output=True, text=True, env=env)
    assert "s cannot be written: File too large\nhint: free some space" in done.stdout, done.stderr
    assert left(tmp_path) == ["s"] and Store.open(tmp_path / "s").info.num_tokens == 2


def test_two_builds_into_one_path_do_not_meet(tmp_path: Path) -> None:
    """The second one is refused while the first one runs, and the first one finishes."""

    def meanwhile() -> Iterator[Piece]:
        yield piece(1, 2, 3)
        with pytest.raises(StoreError, match="another build is writing"):
            build_store(tmp_path / "s", [piece(4)], **NAMED)
        assert left(tmp_path) == ["s.partial"]

    build_store(tmp_path / "s", meanwhile(), **NAMED)
    assert Store.open(tmp_path / "s").info.num_tokens == 3 and left(tmp_path) == ["s"]


KILLED = """
import sys, time
import numpy as np
from pathlib import Path
from draftwood.drafters.retrieval.stores.build import Piece, build_store
def pieces():
    while True:
        yield Piece(np.arange(7))
        print("wrote", flush=True)
build_store(Path(sys.argv[1]), pieces(), vocab_size=8, tokenizer="t")
"""


def test_a_killed_build_leaves_the_store_that_was_there_and_the_next_one_works(tmp_path: Path) -> None:
    made_store(tmp_path / "s", [[1, 2]])
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "s")], stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None and process.stdout.readline() == b"wrote\n"
    process.kill()
    process.communicate()
    assert left(tmp_path) == ["s", "s.partial"] and Store.open(tmp_path / "s").info.num_tokens == 2
    with pytest.raises(StoreError, match="is no datastore"):
        Store.open(tmp_path / "s.partial")
    made_store(tmp_path / "s", [[1, 2, 3]])
    assert left(tmp_path) == ["s"] and Store.open(tmp_path / "s").info.num_tokens == 3


def test_a_file_that_is_no_store_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path / "notes.txt", tmp_path):
        with pytest.raises(StoreError, match=r"is no datastore|is not a file"):
            build_store(path, [piece(1)], **NAMED)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="s cannot be written: "):
        build_store(tmp_path / "file" / "s", [piece(1)], **NAMED)


def test_without_the_extra_building_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    with pytest.raises(StoreError, match=r"needs pydivsufsort.*\nhint: pip install draftwood\[datastore\]"):
        build_store(tmp_path / "s", [piece(1)], **NAMED)
    assert left(tmp_path) == []


@pytest.mark.parametrize("options", [{"chunk_tokens": 0}, {"chunk_tokens": 1 << 29}, {"vocab_size": 0}])
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        build_store(tmp_path / "s", [piece(1)], **{**NAMED, **options})
