"""An open store is what was written, or it is refused: cut short, changed, of another tokenizer."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood.drafters.retrieval.stores.container import HEAD
from draftwood.drafters.retrieval.stores.search import heaviest, longest_match, occurrences
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.errors import StoreError
from small_stores import TOKENIZER, made_store

SRC = Path(__file__).resolve().parents[4] / "src"
CORPUS = [np.random.default_rng(i).integers(0, 8, 90).tolist() for i in range(4)]


@pytest.mark.parametrize(("vocab_size", "width"), [(8, 2), (65_535, 2), (65_536, 4), (200_000, 4)])
@pytest.mark.parametrize("chunk_tokens", [1 << 25, 100])
def test_what_was_written_is_read(tmp_path: Path, vocab_size: int, width: int, chunk_tokens: int) -> None:
    corpus = [[*document, vocab_size - 1] for document in CORPUS]
    store = made_store(tmp_path / "s", corpus, vocab_size, chunk_tokens)
    assert (store.info.width, store.info.num_documents, store.info.num_tokens) == (width, 4, 4 * 91)
    assert store.tokens.tolist() == [token for document in corpus for token in (*document, vocab_size)]
    assert [len(chunk.order) for chunk in store.chunks] == ([100, 100, 100, 68] if chunk_tokens == 100 else [368])
    for chunk in store.chunks:
        own = store.tokens[chunk.first : chunk.first + len(chunk.order)].tolist()
        assert chunk.order.tolist() == list(chunk.suffixes) == sorted(range(len(own)), key=lambda i: own[i:])
    store.check()


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    made_store(path, CORPUS)
    whole = path.read_bytes()
    for size in (0, 1, HEAD.size - 1, HEAD.size, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StoreError, match=r"is no datastore|is damaged"):
            Store.open(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(StoreError, match=r"is damaged: it has \d+ bytes instead of \d+\nhint: build it again"):
        Store.open(path)


@pytest.mark.slow
def test_every_flipped_bit_is_found_and_none_is_followed_out_of_the_file(tmp_path: Path) -> None:
    """At once in the ends of the file, by `check` in its data; until then a lookup answers within the vocabulary or says
    that the store is damaged."""
    path = tmp_path / "s"
    info = made_store(path, CORPUS, chunk_tokens=200).info
    whole = bytearray(path.read_bytes())
    followed = refused = 0
    rng = np.random.default_rng(1)
    for byte in range(len(whole)):
        changed = bytearray(whole)
        changed[byte] ^= 1 << int(rng.integers(8))
        (tmp_path / "changed").write_bytes(changed)
        unused = HEAD.size + info.size * info.width <= byte < info.suffixes_at
        if not unused and (byte < HEAD.size or byte >= info.data_end):
            with pytest.raises(StoreError):
                Store.open(tmp_path / "changed")
            continue
        try:
            store = Store.open(tmp_path / "changed")
            for text in ([1, 2], [3], [5, 0, 7]):
                match = longest_match(store, text, 1, 16)
                if match.span:
                    found = heaviest(store, occurrences(store, match, 5000), 10, 64)
                    assert all(0 <= node.token < 8 for node in found)
            followed += 1
        except StoreError:
            refused += 1
            continue
        if not unused:
            with pytest.raises(StoreError, match=r"chunk \d of 2 does not match its checksum"):
                store.check()
    assert followed and refused


def test_a_store_of_another_version_or_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    made_store(path, CORPUS)
    changed = bytearray(path.read_bytes())
    changed[8] = 2
    path.write_bytes(changed)
    with pytest.raises(StoreError, match="has version 2 of the format, this program reads 1"):
        Store.open(path)
    path.write_text("some text " * 100)
    with pytest.raises(StoreError, match="is no datastore\nhint: `draftwood datastore build"):
        Store.open(path)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(StoreError, match="cannot be opened"):
            Store.open(missing)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    store = made_store(tmp_path / "s", CORPUS)
    store.need_tokenizer(TOKENIZER)
    with pytest.raises(StoreError, match=f"built with another tokenizer: {TOKENIZER}, the target has 00"):
        store.need_tokenizer("00")


READ = """
import sys
from draftwood.drafters.retrieval.stores.search import heaviest, longest_match, occurrences
from draftwood.drafters.retrieval.stores.store import Store
assert "pydivsufsort" not in sys.modules
store = Store.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
at = occurrences(store, longest_match(store, [1, 2], 2, 16), 5000)
print(heaviest(store, at, 10, 64))
"""


def test_two_processes_read_one_store_and_keep_it_while_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = made_store(path, CORPUS)
    expected = heaviest(store, occurrences(store, longest_match(store, [1, 2], 2, 16), 5000), 10, 64)
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": {"PYTHONPATH": str(SRC)},
    }
    readers = [subprocess.Popen([sys.executable, "-c", READ, str(path)], **pipes) for _ in range(2)]
    assert [reader.stdout.readline() for reader in readers if reader.stdout] == ["open\n"] * 2
    assert made_store(path, [[1, 2, 3]]).info.num_tokens == 3
    assert [reader.communicate("\n")[0].strip() for reader in readers] == [str(expected)] * 2


CUT = """
import os, sys
from draftwood.drafters.retrieval.stores.search import longest_match
from draftwood.drafters.retrieval.stores.store import Store
from draftwood.errors import StoreError
store = Store.open(sys.argv[1])
os.truncate(sys.argv[1], 0)
try:
    if sys.argv[2] == "asked":
        store.need_whole()
    longest_match(store, [1, 2], 2, 16)
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="a mapped file cannot be cut")
def test_a_file_that_is_cut_while_it_is_open_would_end_a_process_that_does_not_ask(tmp_path: Path) -> None:
    ended: list[tuple[int, str]] = []
    for asks in ("asked", "not asked"):
        made_store(tmp_path / "s", CORPUS * 20)
        words = [sys.executable, "-c", CUT, str(tmp_path / "s"), asks]
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)})
        ended.append((done.returncode, done.stdout))
        (tmp_path / "s").unlink()
    said = f"datastore {tmp_path / 's'} is damaged: it was cut to 0 bytes while it is open\nhint: build it again\n"
    assert ended == [(0, said), (-signal.SIGBUS, "")]
